"""The settings of a client, the same for both flavours."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field

from ..errors import ConfigurationError
from .durations import Seconds, seconds
from .http import Endpoint
from .retry import Retry

FilePath = str | os.PathLike[str]


@dataclass(frozen=True)
class Settings:
    url: str
    endpoint: Endpoint = field(repr=False)
    tls: ssl.SSLContext | None
    retry: Retry
    connect_timeout: float
    timeout: float
    watch: bool

    @classmethod
    def of(
        cls,
        url: str,
        *,
        api_key: str | None,
        ca_file: FilePath | None,
        client_certificate: tuple[FilePath, FilePath] | None,
        ssl_context: ssl.SSLContext | None,
        retry: Retry | None,
        connect_timeout: Seconds,
        timeout: Seconds,
        watch: bool,
    ) -> Settings:
        endpoint = Endpoint.parse(url, api_key)
        tls = ssl_context
        if ssl_context is not None and (ca_file is not None or client_certificate is not None):
            raise ConfigurationError("`ssl_context` replaces `ca_file` and `client_certificate`: pass one or the other")
        if endpoint.is_encrypted and tls is None:
            try:
                tls = ssl.create_default_context(cafile=ca_file)
                if client_certificate is not None:
                    tls.load_cert_chain(*client_certificate)
            except (OSError, ssl.SSLError) as why:
                raise ConfigurationError(f"a certificate cannot be loaded: {why}") from why
        return cls(
            url=url,
            endpoint=endpoint,
            tls=tls if endpoint.is_encrypted else None,
            retry=retry or Retry(),
            connect_timeout=seconds("connect_timeout", connect_timeout),
            timeout=seconds("timeout", timeout),
            watch=watch,
        )
