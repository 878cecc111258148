package org.apache.spark.sql.catalyst.rules;

/**
 * Spark's count of how often and how long each rule of its optimizer ran, left out.
 *
 * Spark adds up all counters of the process before and after each analysis, to log the difference if asked (docs/adr/0092).
 */
public class QueryExecutionMetering {
  private static final QueryExecutionMetrics NONE = new QueryExecutionMetrics(0, 0, 0, 0);

  public void resetMetrics() {}

  public QueryExecutionMetrics getMetrics() {
    return NONE;
  }

  public void incExecutionTimeBy(String rule, long nanoseconds) {}

  public void incTimeEffectiveExecutionBy(String rule, long nanoseconds) {}

  public void incNumEffectiveExecution(String rule) {}

  public void incNumExecution(String rule) {}

  public String dumpTimeSpent() {
    return "";
  }
}
