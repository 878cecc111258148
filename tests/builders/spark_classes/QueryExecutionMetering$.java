package org.apache.spark.sql.catalyst.rules;

/**
 * Spark's record of how often and how long each rule for plans ran, left out.
 *
 * For each plan, Spark adds the numbers of all rules up, twice, for a log that is off (docs/adr/0092).
 */
public class QueryExecutionMetering$ {
  public static final QueryExecutionMetering$ MODULE$ = new QueryExecutionMetering$();
  private static final QueryExecutionMetrics NONE = new QueryExecutionMetrics(0, 0, 0, 0);
  private final QueryExecutionMetering instance = new WithoutNumbers();

  public QueryExecutionMetering INSTANCE() {
    return instance;
  }

  static class WithoutNumbers extends QueryExecutionMetering {
    @Override
    public QueryExecutionMetrics getMetrics() {
      return NONE;
    }

    @Override
    public void incExecutionTimeBy(String rule, long nanoseconds) {}

    @Override
    public void incTimeEffectiveExecutionBy(String rule, long nanoseconds) {}

    @Override
    public void incNumEffectiveExecution(String rule) {}

    @Override
    public void incNumExecution(String rule) {}
  }
}
