package org.apache.spark.util;

/**
 * Spark's check of each closure, left out.
 *
 * Before each job, Spark reads the class files of the closures' owners again to find references that it can drop. The
 * closures of Spark, Delta and Iceberg need none of that, and it was a tenth of the processor time of the driver of tests
 * (docs/adr/0092).
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
