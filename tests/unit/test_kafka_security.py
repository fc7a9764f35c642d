"""Kafka's security settings without a broker: what each client is told, what is refused, and that no secret shows."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

import pytest

from holdfast.connectors.kafka.client.denied import denied
from holdfast.connectors.kafka.client.java import parse_jaas
from holdfast.connectors.kafka.client.login import hide_wire_dumps
from holdfast.connectors.kafka.client.security import protocol, python_settings
from holdfast.connectors.kafka.client.settings import admin, client_config, login_error
from holdfast.connectors.kafka.sink.options import KafkaSink
from holdfast.errors import ConfigError
from tests.servers.certificates import Authority

SERVERS = "127.0.0.1:1"
SECRET = "pa55-w0rd-of-alice"
SCRAM = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "alice"}
JAAS = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="{SECRET}";'
JAVA = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.jaas.config": JAAS,
}
TLS = {"security.protocol": "SSL", "bootstrap.servers": SERVERS}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


class TestForKafkaPython:
    def test_names_are_translated(self) -> None:
        config = {**SCRAM, "sasl.password": SECRET, "bootstrap.servers": SERVERS, "client.id": "me", "linger.ms": 5}
        settings = python_settings(config)
        assert isinstance(settings.pop("ssl_context"), ssl.SSLContext)
        assert settings == {
            "bootstrap_servers": SERVERS,
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": "alice",
            "sasl_plain_password": SECRET,
            "client_id": "me",
        }

    def test_without_security_nothing_is_checked(self) -> None:
        assert python_settings({"bootstrap.servers": SERVERS, "ssl.curves.list": "x"}) == {
            "bootstrap_servers": SERVERS,
            "security_protocol": "PLAINTEXT",
        }
        assert protocol({"security.protocol": "sasl_ssl"}) == "SASL_SSL"
        with pytest.raises(ConfigError, match=r"security.protocol must be one of PLAINTEXT, SSL.* not 'TLS'"):
            protocol({"security.protocol": "tls"})

    @pytest.mark.parametrize("key", ["ssl.keystore.location", "ssl.curves.list", "ssl.engine.id", "ssl.providers"])
    def test_what_it_cannot_have_is_refused_by_name(self, key: str) -> None:
        with pytest.raises(ConfigError, match=f"config: {key} cannot be given"):
            python_settings({**TLS, key: "x"})

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"sasl.mechanism": "OAUTHBEARER"}, "'OAUTHBEARER' is not supported: use PLAIN"),
            ({"sasl.mechanism": "GSSAPI"}, "GSSAPI.* needs the package gssapi"),
            ({"sasl.oauthbearer.method": "oidc"}, "sasl.oauthbearer.method cannot be given"),
            ({"sasl.password": ""}, "sasl.password is missing"),
            ({"sasl.username": "a=b"}, "comma or an equals sign"),
        ],
    )
    def test_logins_it_does_not_know(self, changes: dict[str, str], message: str) -> None:
        with pytest.raises(ConfigError, match=message) as caught:
            python_settings({**SCRAM, "sasl.password": SECRET, "bootstrap.servers": SERVERS, **changes})
        assert SECRET not in str(caught.value)

    def test_verification(self) -> None:
        context = python_settings(TLS)["ssl_context"]
        assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
        context = python_settings({**TLS, "ssl.endpoint.identification.algorithm": "none"})["ssl_context"]
        assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_REQUIRED)
        for off in (False, "false"):
            context = python_settings({**TLS, "enable.ssl.certificate.verification": off})["ssl_context"]
            assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_NONE)

    def test_files_and_texts_are_the_same(self, authority: Authority) -> None:
        certificate, key = authority.issue("both", SECRET)
        files = {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}
        texts = {"ssl.certificate.pem": certificate.read_text(), "ssl.key.pem": key.read_text()}
        trusts: list[dict[str, str]] = [
            {"ssl.ca.location": str(authority.ca)},
            {"ssl.ca.pem": authority.ca.read_text()},
        ]
        for trust in trusts:
            for identity in (files, texts):
                settings = python_settings({**TLS, **trust, **identity, "ssl.key.password": SECRET})
                assert len(settings["ssl_context"].get_ca_certs()) == 1
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        python_settings({**TLS, **texts, "ssl.key.password": SECRET})
        assert len(list(Path("/proc/self/fd").iterdir())) == descriptors

    def test_a_bad_file_is_named_and_nobody_is_asked_on_the_terminal(self, authority: Authority) -> None:
        certificate, key = authority.issue("locked", SECRET)
        identity = {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}
        with pytest.raises(ConfigError, match=r"the key is encrypted: give ssl.key.password"):
            python_settings({**TLS, **identity})
        with pytest.raises(ConfigError, match=r"ssl.certificate.\* or ssl.key.\* cannot be used") as caught:
            python_settings({**TLS, **identity, "ssl.key.password": "wrong-one"})
        assert "wrong-one" not in str(caught.value)
        with pytest.raises(ConfigError, match=r"ssl.key.\* without ssl.certificate.location"):
            python_settings({**TLS, "ssl.key.location": str(key)})
        with pytest.raises(ConfigError, match=r"ssl.ca.location or ssl.ca.pem cannot be used"):
            python_settings({**TLS, "ssl.ca.location": "/nowhere.pem"})
        with pytest.raises(ConfigError, match=r"ssl.cipher.suites cannot be used"):
            python_settings({**TLS, "ssl.cipher.suites": "none-such"})


class TestFromJava:
    """What read_kafka's options become for the client that resolves the start and commits group offsets."""

    def test_a_login_and_a_pem_truststore(self) -> None:
        options = {
            **JAVA,
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": "/ca.pem",
            "kafka.ssl.endpoint.identification.algorithm": "",
            "kafka.ssl.cipher.suites": "TLS_AES_256_GCM_SHA384",
            "kafka.ssl.enabled.protocols": "TLSv1.3",
            "kafka.Fetch.Max.Wait.Ms": "5",
        }
        assert client_config(SERVERS, options) == {
            "bootstrap.servers": SERVERS,
            "log_level": 0,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "alice",
            "sasl.password": SECRET,
            "ssl.ca.location": "/ca.pem",
            "ssl.endpoint.identification.algorithm": "none",
        }

    def test_stores(self) -> None:
        ssl_only = {"kafka.security.protocol": "SSL"}
        texts = {
            "kafka.ssl.truststore.certificates": "CA",
            "kafka.ssl.keystore.key": "KEY",
            "kafka.ssl.keystore.certificate.chain": "CHAIN",
            "kafka.ssl.key.password": SECRET,
        }
        config = client_config(SERVERS, {**ssl_only, **texts})
        assert {k: v for k, v in config.items() if k.startswith("ssl.")} == {
            "ssl.ca.pem": "CA",
            "ssl.key.pem": "KEY",
            "ssl.certificate.pem": "CHAIN",
            "ssl.key.password": SECRET,
        }
        file = {"kafka.ssl.keystore.type": "PEM", "kafka.ssl.keystore.location": "/me.pem"}
        config = client_config(SERVERS, {**ssl_only, **file})
        assert (config["ssl.certificate.location"], config["ssl.key.location"]) == ("/me.pem", "/me.pem")
        assert "ssl.keystore.location" not in config
        file = {**file, "kafka.ssl.keystore.type": "PKCS12", "kafka.ssl.keystore.password": SECRET}
        config = client_config(SERVERS, {**ssl_only, **file})
        assert (config["ssl.keystore.location"], config["ssl.keystore.password"]) == ("/me.pem", SECRET)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {"kafka.ssl.truststore.location": "/t.jks"},
                r"kafka.ssl.truststore.location is of type JKS.*type=PEM, or",
            ),
            ({"kafka.ssl.keystore.location": "/k.jks"}, r"kafka.ssl.keystore.location is of type JKS.*certificate.loc"),
            ({"kafka.sasl.jaas.config": ""}, r"kafka.sasl.jaas.config is not `package.Module"),
            ({"kafka.sasl.jaas.config": JAAS[:-1]}, r"kafka.sasl.jaas.config is not `package.Module"),
            (
                {"kafka.sasl.jaas.config": JAAS[:-1] + " tokenauth=true;"},
                "tokenauth .a delegation token. is Spark's only",
            ),
            ({"kafka.sasl.jaas.config": f'a.Krb5LoginModule required password="{SECRET}";'}, "Krb5LoginModule without"),
            ({"kafka.sasl.mechanism": "OAUTHBEARER"}, "kafka.sasl.mechanism 'OAUTHBEARER' is Spark's only"),
        ],
    )
    def test_what_has_no_translation_is_refused_by_name(self, options: dict[str, str], message: str) -> None:
        with pytest.raises(ConfigError, match=message) as caught:
            client_config(SERVERS, {**JAVA, **options})
        assert SECRET not in str(caught.value)

    def test_the_jvms_login_file_is_not_read(self) -> None:
        options = {key: value for key, value in JAVA.items() if "jaas" not in key}
        with pytest.raises(ConfigError, match=r"kafka.sasl.jaas.config is missing.*kafka.sasl.username"):
            client_config(SERVERS, options)

    def test_librdkafkas_own_names_are_the_way_out(self) -> None:
        options = {
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": "bob",
            "kafka.sasl.password": SECRET,
            "kafka.ssl.truststore.location": "/t.jks",
            "kafka.ssl.ca.location": "/ca.pem",
            "kafka.ssl.keystore.location": "/k.jks",
            "kafka.ssl.certificate.location": "/c.pem",
            "kafka.ssl.key.location": "/k.pem",
        }
        config = client_config(SERVERS, options)
        assert config["sasl.username"] == "bob"
        assert config["ssl.ca.location"] == "/ca.pem"
        assert not [key for key in config if "store" in key]

    def test_jaas_is_read_as_java_reads_it(self) -> None:
        text = "x.PlainLoginModule required\n username='it''s'"
        with pytest.raises(ConfigError, match="is not"):
            parse_jaas(text)
        text = 'x.PlainLoginModule required\n username=alice\n password="a\\"b;=c\\\\" other = "";'
        assert parse_jaas(text) == ("PlainLoginModule", {"username": "alice", "password": 'a"b;=c\\', "other": ""})


class TestSecrets:
    def test_they_are_not_in_what_a_sink_or_an_error_shows(self) -> None:
        config = {**SCRAM, "sasl.password": SECRET, "ssl.key.password": SECRET}
        sink = KafkaSink(SERVERS, "orders", config=config)
        assert SECRET not in repr(sink) + str(sink)
        error = login_error(f"no such user, or not {SECRET}", {**config, "bootstrap.servers": SERVERS})
        assert SECRET not in str(error)
        assert "as 'alice'" in str(error)
        with pytest.raises(ConfigError, match="does not take these settings") as caught:
            admin({**config, "bootstrap.servers": SERVERS, "sasl.mechanism": SECRET})
        assert SECRET not in str(caught.value)

    def test_the_wire_is_not_in_the_debug_log(self, caplog: pytest.LogCaptureFixture) -> None:
        """PLAIN sends the password as it is, and kafka-python's debug log repeats every byte."""
        hide_wire_dumps()
        hide_wire_dumps()
        with caplog.at_level(logging.DEBUG, "kafka"):
            for name in ("kafka.protocol.parser", "kafka.net.connection"):
                assert len(logging.getLogger(name).filters) == 1
                logging.getLogger(name).debug("Send: %r", SECRET)
                logging.getLogger(name).info("Connected")
        assert [record.message for record in caplog.records] == ["Connected", "Connected"]


class TestDenied:
    @pytest.mark.parametrize(
        ("code", "resource", "texts"),
        [
            (
                53,
                {"transactional_id": "hfk1-p-s-0123456789ab-0-1-2", "rights": "Write"},
                ["WRITE on transactional id", "--transactional-id hfk1-p-s- --resource-pattern-type prefixed"],
            ),
            (
                30,
                {"group": "hfk1-p-s-0123456789ab-0-1-2-x", "rights": "Read"},
                ["READ on group", "--operation Read --group hfk1-p-s- --resource-pattern-type prefixed"],
            ),
            (30, {"group": "hfl1-p-s"}, ["--group hfl1-p-s --resource-pattern-type prefixed"]),
            (30, {"group": "mine"}, ["--operation Read --group mine ("]),
            (29, {"topic": "t"}, ["READ and WRITE on topic 't'", "--operation Read --operation Write --topic t ("]),
            (31, {}, ["IDEMPOTENTWRITE on the cluster", "--operation IdempotentWrite --cluster"]),
        ],
    )
    def test_who_what_and_the_command(self, code: int, resource: dict[str, Any], texts: list[str]) -> None:
        error = denied(code, "do it", {**SCRAM, "bootstrap.servers": SERVERS}, **resource)
        for text in ("Kafka refused to do it: User:alice has no right to", "--allow-principal User:alice", *texts):
            assert text in str(error), error

    def test_with_a_certificate_only_the_broker_knows_the_name(self) -> None:
        assert "--allow-principal User:NAME" in str(denied(29, "do it", TLS, topic="t"))
        assert denied(5, "do it", TLS) is None
