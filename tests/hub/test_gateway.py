"""Every way in which the Hub says no becomes one line and the right exit code."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import errors

from zoo import hub
from zoo.errors import NotFoundError, UsageError, ZooError


def _response(status: int) -> SimpleNamespace:
    """As much of an HTTP response as the errors of huggingface_hub look at, whichever client it is built on."""
    request = SimpleNamespace(url="https://example.invalid/x", method="GET", headers={})
    return SimpleNamespace(status_code=status, headers={}, request=request, url=request.url, text="")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            errors.RepositoryNotFoundError("no", response=_response(401)),
            NotFoundError,
            "private, or the token is wrong",
        ),
        (errors.GatedRepoError("no", response=_response(403)), NotFoundError, "accept its terms"),
        (errors.RevisionNotFoundError("no", response=_response(404)), NotFoundError, "no revision 'abc'"),
        (errors.RemoteEntryNotFoundError("no", response=_response(404)), NotFoundError, "has no file f.bin"),
        (errors.LocalEntryNotFoundError("no"), NotFoundError, "not in the local cache"),
        (errors.OfflineModeIsEnabled("no"), NotFoundError, "HF_HUB_OFFLINE"),
        (errors.HfHubHTTPError("no", response=_response(429)), ZooError, "too many requests"),
        (errors.HfHubHTTPError("broken\nserver", response=_response(500)), ZooError, "broken server"),
        (errors.HFValidationError("bad id"), UsageError, "owner/name"),
        (ConnectionError("no route"), ZooError, "no route"),
        (OSError(28, "No space left on device"), ZooError, "No space left"),
    ],
)
def test_errors_become_one_line(monkeypatch, error, kind, words):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(kind, match=words) as caught:
        hub.fetch("org/name", "f.bin", revision="abc")
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)


def test_a_line_that_breaks_in_mid_download(monkeypatch):
    """Whatever client huggingface_hub is built on: its errors need not be those of the operating system."""
    client = importlib.import_module(errors.HfHubHTTPError.__mro__[1].__module__.partition(".")[0])
    for name in ("ReadError", "ReadTimeout", "RemoteProtocolError", "StreamConsumed"):
        kind = getattr(client, name)
        error = kind() if name == "StreamConsumed" else kind("")

        def fail(*args, error=error, **kwargs):
            raise error

        monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
        with pytest.raises(ZooError, match="could not be fetched: ") as caught:
            hub.fetch("org/name", "f.bin")
        assert type(caught.value) is ZooError


def test_a_mistake_of_ours_is_not_hidden(monkeypatch):
    def fail(*args, **kwargs):
        raise TypeError("ours")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(TypeError, match="ours"):
        hub.fetch("org/name", "f.bin")


def test_options_reach_the_hub(monkeypatch, tmp_path):
    seen = {}

    def download(repository, filename, **options):
        seen.update(options, repository=repository, filename=filename)
        return str(tmp_path / "f.bin")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    path = hub.fetch(
        "org/name", "f.bin", revision="abc", local_files_only=True, cache_dir=tmp_path, repo_type="dataset"
    )
    assert path == tmp_path / "f.bin"
    wanted = {"revision": "abc", "local_files_only": True, "cache_dir": tmp_path, "repo_type": "dataset"}
    assert wanted.items() <= seen.items()


def test_offline_and_not_cached(tmp_path):
    with pytest.raises(NotFoundError, match="not in the local cache"):
        hub.fetch("org/name", "f.bin", local_files_only=True, cache_dir=tmp_path)


def test_an_id_that_is_none(tmp_path):
    with pytest.raises(UsageError, match="repository id"):
        hub.fetch("a/b/c", "f.bin", cache_dir=tmp_path)
