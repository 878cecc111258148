package org.apache.spark.util;

/**
 * Spark's check of each closure, left out.
 *
 * Before each job, Spark reads the class files of the closures' owners again to find references that it can drop. It
 * drops those of a REPL only, and there is none here. That was a tenth of the processor time of the driver of tests. A
 * closure that cannot be serialised still fails: when Spark makes its tasks.
 */
public class SparkClosureCleaner$ {
  public static final SparkClosureCleaner$ MODULE$ = new SparkClosureCleaner$();

  public void clean(Object closure, boolean checkSerializable, boolean cleanTransitively) {}

  public boolean clean$default$2() {
    return true;
  }

  public boolean clean$default$3() {
    return true;
  }
}
