"""Settings that make a short-lived Spark start sooner; nothing that changes what it does."""

FAST = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
    "spark.sql.codegen.wholeStage": "false",
    "spark.ui.enabled": "false",
    # With it, Spark starts other Python workers for SQL than for RDDs, and holdfast uses both.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
}
