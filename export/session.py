"""The one gateway to ONNX Runtime: sessions that run where they were asked to, or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.errors import DamagedError, DeviceError, MissingDependencyError, NotFoundError, UsageError, one_line
from zoo.files import impostor

if TYPE_CHECKING:
    import numpy as np
    import onnxruntime
    from torch import Tensor

_DEVICE = re.compile(r"cpu|cuda(?::(\d{1,3}))?")
_FILE_FAULTS = {"InvalidProtobuf", "InvalidGraph", "InvalidArgument", "NoModel"}


def open_session(
    path: str | os.PathLike[str], device: Any = "cpu", *, threads: int | None = None
) -> onnxruntime.InferenceSession:
    """An ONNX Runtime session for the file at `path` that runs on `device`: never silently on another one.

    Parameters
    ----------
    path : an ONNX file; external weights are looked for beside it, whatever the working directory is.
    device : "cpu", "cuda" or "cuda:N" (or a torch.device).
    threads : of one run on the CPU; None leaves it to ONNX Runtime.

    On CUDA all float32 stays float32: TF32 is off, also for convolutions, where torch has it on by default.

    Raises
    ------
    NotFoundError
        There is no such file.
    DamagedError
        The file is no ONNX model, or was cut, or weights that belong to it are missing.
    DeviceError
        ONNX Runtime has no such device, or the device cannot run this model.
    MissingDependencyError
        onnxruntime is not installed.
    """
    providers = _providers(device)
    file = _checked(path)
    printed = io.StringIO()
    with _native_stderr() as noise:
        ort = _onnxruntime()
        wanted = providers[0] if isinstance(providers[0], str) else providers[0][0]
        if wanted not in ort.get_available_providers():
            raise DeviceError(
                f"this onnxruntime has no {wanted}, so no {device}; pip install onnxruntime-gpu, or use cpu"
            )
        if wanted.startswith("CUDA"):
            with contextlib.redirect_stdout(printed):  # it prints what it cannot find
                ort.preload_dlls()
        options = ort.SessionOptions()
        options.log_severity_level = 3
        # Idle threads that spin after a run take the processor from whatever runs next.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            session = ort.InferenceSession(str(file), options, providers=providers, enable_fallback=0)
        except Exception as error:
            kind, reason = type(error).__name__, _reason(error)
            if "external data" in reason.lower() or "external_data" in reason.lower():
                raise DamagedError(f"{file} lacks weights that lie in a second file: {reason}") from error
            if kind in _FILE_FAULTS or (wanted.startswith("CPU") and kind != "NotImplemented"):
                raise DamagedError(f"{file} is no ONNX model that ONNX Runtime can read: {reason}") from error
            raise DeviceError(f"ONNX Runtime cannot run {file.name} on {device}: {reason}") from error
    used = session.get_providers()[0]
    if used != wanted:
        library = re.search(r"(lib[\w.+-]+): cannot open shared object", noise() + printed.getvalue())
        cause = f"{library[1]} is missing" if library else f"it would run on {used}"
        raise DeviceError(f"ONNX Runtime cannot use {device} ({cause}); `zoo env` says what is there, or use cpu")
    return session


class OnnxModel:
    """An ONNX file as a function from images to logits.

    Parameters and errors as `open_session`. `metadata` is what the file says about itself: strings by name.
    """

    def __init__(self, path: str | os.PathLike[str], device: Any = "cpu", *, threads: int | None = None) -> None:
        self.session = open_session(path, device, threads=threads)
        self.device = str(device)
        self.inputs, self.outputs = self.session.get_inputs(), self.session.get_outputs()
        self.metadata: dict[str, str] = dict(self.session.get_modelmeta().custom_metadata_map)

    def __call__(self, images: Tensor | np.ndarray) -> np.ndarray:
        """images: (batch, channels, height, width), normalised, of any float type -> logits: (batch,
        classes).

        Raises UsageError for another shape, or for integers: pixels have to be normalised first.
        """
        array = images.detach().cpu().float().numpy() if hasattr(images, "detach") else images
        return self.session.run([self.outputs[0].name], {self.inputs[0].name: self._checked(array, images.dtype)})[0]

    def bind(self, images: Tensor) -> tuple[Callable[[], None], Tensor]:
        """A call that runs on `images` where they lie, and the logits it fills: no copies through the host.

        images: contiguous float32 (batch, channels, height, width) on the session's device. ONNX Runtime knows
        nothing of torch's streams: what torch has queued is done when this returns, what it queues later into
        `images` has to be waited for before the call.
        """
        import numpy as np
        import torch

        self._checked(images, images.dtype)
        if images.dtype != torch.float32 or not images.is_contiguous():
            raise UsageError(f"binding takes contiguous float32 images, got {images.dtype}")
        classes = self.outputs[0].shape[1]
        logits = torch.empty((len(images), classes), dtype=torch.float32, device=images.device)
        binding = self.session.io_binding()
        place = images.device.type, images.device.index or 0
        binding.bind_input(self.inputs[0].name, *place, np.float32, tuple(images.shape), images.data_ptr())
        binding.bind_output(self.outputs[0].name, *place, np.float32, tuple(logits.shape), logits.data_ptr())
        if images.is_cuda:
            torch.cuda.synchronize(images.device)

        def run(owner: tuple[Tensor, Tensor] = (images, logits)) -> None:  # what is bound has to stay alive
            self.session.run_with_iobinding(binding)

        return run, logits

    def _checked(self, images: Any, dtype: object) -> Any:
        """`images` if the file takes their shape and type; an array as contiguous float32."""
        import numpy as np

        if "float" not in str(dtype):
            raise UsageError(f"images have to be normalised to floating point first, got {dtype}")
        expected = self.inputs[0].shape
        fits = len(images.shape) == len(expected) and all(
            size == want or not isinstance(want, int) for size, want in zip(images.shape, expected, strict=True)
        )
        if not fits:
            shown = ", ".join(str(size) for size in expected)
            raise UsageError(f"the model takes images of shape ({shown}), got {tuple(images.shape)}")
        return np.ascontiguousarray(images, dtype=np.float32) if isinstance(images, np.ndarray) else images


def _providers(device: Any) -> list[Any]:
    """The explicit list for `device`; ONNX Runtime's own order would try whatever is installed."""
    match = _DEVICE.fullmatch(str(device))
    if match is None:
        raise DeviceError(f"ONNX Runtime does not run on {str(device)!r} here; use cpu, cuda or cuda:N")
    if match[0] == "cpu":
        return ["CPUExecutionProvider"]
    return [
        ("CUDAExecutionProvider", {"device_id": int(match[1] or 0), "use_tf32": "0"}),
        "CPUExecutionProvider",
    ]


def _checked(path: str | os.PathLike[str]) -> Path:
    """`path` as an absolute path to a file that may be ONNX."""
    file = Path(path).expanduser().resolve()
    if file.is_dir():
        raise UsageError(f"{path} is a folder; name the .onnx file in it")
    try:
        with file.open("rb") as stream:
            head = stream.read(64)
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}; `zoo export --onnx` writes one") from None
    except OSError as error:
        raise NotFoundError(f"{path} cannot be read: {error.strerror}") from None
    cause = impostor(head)
    if cause:
        raise DamagedError(f"{path} holds no model: {cause}; export or fetch it again")
    return file


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependencyError(
            "ONNX Runtime is not installed; run: pip install onnxruntime-gpu (without a GPU: onnxruntime)"
        ) from error
    return onnxruntime


def _reason(error: BaseException) -> str:
    """What ONNX Runtime said, without its prefix and line breaks."""
    text = one_line(error)
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (?:Load model from .*? failed: ?)?", "", text)[:300]


@contextlib.contextmanager
def _native_stderr() -> Iterator[Callable[[], str]]:
    """Hold back what native code writes to file descriptor 2; yields a function that gives the text."""
    with tempfile.TemporaryFile() as file:
        text = ""

        def read() -> str:
            return text

        try:
            kept = os.dup(2)
        except OSError:  # no stderr at all
            yield read
            return
        if sys.stderr:
            sys.stderr.flush()
        os.dup2(file.fileno(), 2)
        try:
            yield read
        finally:
            if sys.stderr:
                sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            text = file.read().decode(errors="replace")
