"""boto3 over TLS: it believes the authorities of the cluster's key, and nobody else."""

from __future__ import annotations

import importlib.metadata
import os

import boto3
from boto3_client import Boto3
from botocore.exceptions import SSLError
from endpoint import BUCKET, endpoint
from suite import Suite

with endpoint(is_tls=True) as place:
    assert place.url.startswith("https://")
    Suite(place, Boto3()).run("boto3, TLS", importlib.metadata.version("boto3"))
    # Without them it does not believe the endpoint.
    del os.environ["AWS_CA_BUNDLE"], os.environ["SSL_CERT_FILE"]
    try:
        boto3.client("s3").head_object(Bucket=BUCKET, Key="small")
    except SSLError as error:
        assert "CERTIFICATE_VERIFY_FAILED" in str(error), error
    else:
        raise AssertionError("an authority that nobody knows is believed")
