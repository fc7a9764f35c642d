"""Every interface of Spark that is not public and that holdfast uses, each with what is done where it is missing.

Spark may change these from one version to the next. So nothing else of holdfast touches them. Where one is missing,
that is logged once and the fallback does, which is slower or says less but loses nothing. `INTERFACES` lists them, and
tests/integration/test_private.py notices when one is missing or its fallback does not work; `make compat` runs it on
every version of Spark that is supported. `FILES` are Spark's own files that holdfast reads: `checkpoint/enginefiles.py`
refuses a format that it does not know. `HABITS` are no interfaces, but what Spark does without a promise.
"""

from holdfast.spark.private import interfaces as interfaces
from holdfast.spark.private.interfaces import FILES as FILES
from holdfast.spark.private.interfaces import HABITS as HABITS
from holdfast.spark.private.interfaces import INTERFACES as INTERFACES
from holdfast.spark.private.interfaces import missing_file as missing_file
from holdfast.spark.private.java import by_value as by_value
from holdfast.spark.private.java import class_origin as class_origin
from holdfast.spark.private.java import failure_text as failure_text
from holdfast.spark.private.java import file_manager as file_manager
from holdfast.spark.private.java import fill_writer as fill_writer
from holdfast.spark.private.java import forget_dead_spark as forget_dead_spark
from holdfast.spark.private.java import hadoop_settings as hadoop_settings
from holdfast.spark.private.java import has_jvm as has_jvm
from holdfast.spark.private.java import interrupt as interrupt
from holdfast.spark.private.java import is_classic as is_classic
from holdfast.spark.private.java import java_query as java_query
from holdfast.spark.private.java import pause as pause
from holdfast.spark.private.java import pickle_by_value as pickle_by_value
from holdfast.spark.private.java import pickled as pickled
from holdfast.spark.private.java import qualified as qualified
from holdfast.spark.private.java import settings_of as settings_of
from holdfast.spark.private.java import stop_java as stop_java
from holdfast.spark.private.java import submitted as submitted
from holdfast.spark.private.plans import PlanPart as PlanPart
from holdfast.spark.private.plans import analyzed as analyzed
from holdfast.spark.private.plans import few_steps as few_steps
from holdfast.spark.private.plans import first_run as first_run
from holdfast.spark.private.plans import kafka_rows as kafka_rows
from holdfast.spark.private.plans import plan_of as plan_of
from holdfast.spark.private.plans import plan_parts as plan_parts
from holdfast.spark.private.plans import plan_rows as plan_rows
from holdfast.spark.private.plans import plan_text as plan_text
from holdfast.spark.private.plans import same_schema as same_schema
from holdfast.spark.private.plans import streaming_sources as streaming_sources
from holdfast.spark.private.schemas import arrow_schema as arrow_schema
from holdfast.spark.private.schemas import arrow_schema_of as arrow_schema_of
from holdfast.spark.private.schemas import in_zone as in_zone
