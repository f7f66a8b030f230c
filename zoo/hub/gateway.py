"""The only module that talks to the network.

Downloads go through huggingface_hub: its cache, its resuming, its tokens (`HF_TOKEN`), its proxies (`HTTPS_PROXY`).
Where a download hangs, `HF_HUB_DISABLE_XET=1` takes the plain way.
"""

from __future__ import annotations

from pathlib import Path

from zoo.errors import NotFoundError, UsageError, ZooError, one_line

_CLIENTS = ("httpx", "httpx2", "requests")


def fetch(
    repository: str,
    filename: str,
    *,
    revision: str | None = None,
    repo_type: str = "model",
    local_files_only: bool = False,
    cache_dir: str | Path | None = None,
) -> Path:
    """Path of one file of a Hub repository in the local cache, downloaded if needed.

    Raises
    ------
    NotFoundError
        Repository, revision or file do not exist, are private or gated, or are not cached while offline.
    UsageError
        `repository` is no Hub id.
    ZooError
        The Hub cannot be reached or refuses; nothing is left half-written.
    """
    import huggingface_hub
    from huggingface_hub import errors

    place = f"{repository}{'@' + revision if revision else ''}"
    try:
        return Path(
            huggingface_hub.hf_hub_download(
                repository,
                filename,
                revision=revision,
                repo_type=repo_type,
                local_files_only=local_files_only,
                cache_dir=cache_dir,
                library_name="attention-zoo",
            )
        )
    except errors.HFValidationError as error:
        raise UsageError(f"{repository!r} is no Hub repository id (owner/name): {_line(error)}") from None
    except errors.GatedRepoError:
        raise NotFoundError(f"{place} is gated: accept its terms on the Hub, then `hf auth login`") from None
    except errors.RepositoryNotFoundError:
        raise NotFoundError(
            f"{place} was not found on the Hub: it does not exist, or it is private, or the token is wrong"
            " (`hf auth login`, or unset HF_TOKEN)"
        ) from None
    except errors.RevisionNotFoundError:
        raise NotFoundError(f"{repository} has no revision {revision!r}") from None
    # The local kinds first: they derive from the error for a missing remote file or from OSError.
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        raise NotFoundError(
            f"{filename} of {place} is not in the local cache and the Hub was not reached;"
            " go online once, or unset HF_HUB_OFFLINE"
        ) from None
    except errors.EntryNotFoundError:
        raise NotFoundError(f"{place} has no file {filename}") from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        hint = "too many requests; wait, or log in (`hf auth login`)" if status == 429 else _line(error)
        raise ZooError(f"the Hub refused {filename} of {place}: {hint}") from None
    except Exception as error:
        if isinstance(error, OSError) or _is_of_the_client(error):
            raise ZooError(f"{filename} of {place} could not be fetched: {_line(error)}; try again") from None
        raise


def _is_of_the_client(error: Exception) -> bool:
    """Whether the HTTP client raised `error`, by name: which client it is depends on huggingface_hub's version."""
    return any(
        kind.__name__ in ("HTTPError", "StreamError") and kind.__module__.partition(".")[0] in _CLIENTS
        for kind in type(error).__mro__
    )


def _line(error: Exception) -> str:
    return one_line(error) or type(error).__name__
