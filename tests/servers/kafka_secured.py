"""A Kafka broker with SASL/SCRAM, TLS and ACLs. Its plain listener is the super user's: tests make topics there."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.spark.jars import Coordinate, fetch_jars
from tests.servers.certificates import Authority
from tests.servers.kafka import KafkaBroker, free_port

TOOLS = (Coordinate("org.apache.kafka", "kafka-tools", "4.3.1"),)


class SecuredBroker(KafkaBroker):
    """Users and their passwords are given when it is made; rights are granted with Kafka's own tool."""

    def __init__(self, folder: Path, users: Mapping[str, str]) -> None:
        self.users = dict(users)
        self.authority = Authority(folder / "tls")
        certificate, key = self.authority.issue("broker", server=True)
        # Java takes a key and its certificate as one PEM file.
        keystore = folder / "tls" / "broker.keystore.pem"
        keystore.write_bytes(key.read_bytes() + certificate.read_bytes())
        self.ports = {"SASL_SSL": free_port(), "SSL": free_port(), "SASL_PLAINTEXT": free_port()}
        login = "org.apache.kafka.common.security"
        plain = " ".join(f'user_{user}="{password}"' for user, password in users.items())
        logins = {
            f"listener.name.{name}.{mechanism.lower()}.sasl.jaas.config": f"{login}.{module} required {arguments};"
            for name in ("sasl_ssl", "sasl_plaintext")
            for mechanism, module, arguments in (
                ("SCRAM-SHA-256", "scram.ScramLoginModule", ""),
                ("SCRAM-SHA-512", "scram.ScramLoginModule", ""),
                ("PLAIN", "plain.PlainLoginModule", plain),
            )
        }
        super().__init__(
            folder,
            more_listeners=self.ports,
            format_arguments=[
                argument
                for user, password in users.items()
                for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
                for argument in ("--add-scram", f"{mechanism}=[name={user},password={password}]")
            ],
            **{
                "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(keystore),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.authority.ca),
                "listener.name.ssl.ssl.client.auth": "required",
                "ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/,DEFAULT",
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                # The plain listener, the controller's and the one between brokers.
                "super.users": "User:ANONYMOUS",
                **logins,
            },
        )

    def address(self, protocol: str) -> str:
        """For bootstrap.servers."""
        return f"127.0.0.1:{self.ports[protocol]}"

    def scram(self, user: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
        """A sink's settings for SASL_SSL."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": self.users[user],
            "ssl.ca.location": str(self.authority.ca),
        }

    def acls(self, command: str) -> None:
        """Run a `kafka-acls` command line, as the super user."""
        arguments = [self.bootstrap if word == "BROKER" else word for word in shlex.split(command)]
        assert arguments[0] == "kafka-acls.sh", command
        jars = ":".join(str(jar) for jar in fetch_jars(TOOLS))
        java = self._command("-Xmx128m")
        java[-1] = f"{java[-1]}:{jars}"
        done = subprocess.run(
            [*java, "-XX:TieredStopAtLevel=1", "org.apache.kafka.tools.AclCommand", *arguments[1:]],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0 and not re.search("Error|Exception", done.stdout + done.stderr), (
            command,
            done.stdout + done.stderr,
        )
