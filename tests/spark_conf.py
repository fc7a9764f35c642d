"""Settings that make a short-lived Spark start sooner, and one that makes small tests like large pipelines."""

FAST = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
    "spark.sql.codegen.wholeStage": "false",
    "spark.ui.enabled": "false",
    # Else one task would write all that a test has: see tests/integration/test_few_rows.py.
    "spark.holdfast.fewRows": "0",
}
