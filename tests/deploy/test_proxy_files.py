"""The files for nginx and haproxy are those of the page, and name the service that a server has."""

from pathlib import Path

import pytest

from offbeat.net.grpc.protocol import PATH
from tests.deploy.command_lines import DEPLOY

PAGE = (Path(__file__).parents[2] / "docs/deploy.md").read_text()
FILES = ("nginx/passthrough.conf", "nginx/terminate.conf", "haproxy/passthrough.cfg")


@pytest.mark.parametrize("file", FILES)
def test_the_page_shows_the_file(file: str):
    assert f'--8<-- "deploy/{file}"' in PAGE
    assert (DEPLOY / file).read_text().count("{") == (DEPLOY / file).read_text().count("}")


def test_nginx_passes_the_calls_of_the_service_and_says_who_calls():
    text = (DEPLOY / "nginx/terminate.conf").read_text()
    assert f"location {PATH.rpartition('/')[0]}/ {{" in text
    assert "grpc_set_header X-Forwarded-For $remote_addr;" in text  # not what the site says of itself
    assert "client_max_body_size 0;" in text
