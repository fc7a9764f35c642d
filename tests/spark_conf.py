"""Settings that make a short-lived Spark start sooner; nothing that changes what it does."""

FAST = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
    "spark.sql.codegen.wholeStage": "false",
    "spark.ui.enabled": "false",
}
