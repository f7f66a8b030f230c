"""The command `zoo`: a few lines each, they call the library and print.

stdout is for results, stderr for the rest. An error is one line on stderr and its own exit code (see `zoo.errors`);
`--traceback`, anywhere on the line, shows where it came from.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from zoo import registry
from zoo.console import Group, print_facts, print_json, read_settings
from zoo.errors import DamagedError, NotFoundError, UsageError

_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
_DEVICE = click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:N or mps.")
_DATA = click.option(
    "--data", metavar="SET", help="Another data set: a name, imagefolder:DIR of class folders, textfile:FILE."
)
_DATA_DIR = click.option(
    "--data-dir", type=click.Path(), help="Folder of the data set; else ZOO_DATA, else it is fetched from the Hub."
)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="attention-zoo", prog_name="zoo")
def main() -> None:
    """A zoo of attention mechanisms: models with verified weights, exports that run, latencies to believe.

    Any command takes --traceback, which shows where an error came from.
    """


@main.command("list")
@click.argument("pattern", required=False)
@click.option("--all", "hidden", is_flag=True, help="The test-sized entries too.")
@_JSON
def list_(pattern: str | None, hidden: bool, as_json: bool) -> None:
    """List the models, or those that PATTERN ('ns-*') matches."""
    found = [registry.get(name) for name in registry.names(pattern, hidden=hidden)]
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(found))
    elif not found:
        raise NotFoundError(f"no model matches {pattern!r}; `zoo list` shows all")
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        console = Console()
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column("name", no_wrap=True)
        for title in ("what it is", "weights", "measured")[: 3 if console.width >= 80 else 1]:
            table.add_column(title)
        for entry in found:
            ours = f"{entry.ours.metric} {entry.ours.value:.2f}" if entry.ours else ""
            row = (entry.name, entry.summary, "yes" if entry.weights.sha256 else "no", ours)
            table.add_row(*row[: len(table.columns)])
        console.print(table)
    else:
        for entry in found:
            click.echo(entry.name)


@main.command()
@click.argument("name")
@_JSON
def info(name: str, as_json: bool) -> None:
    """Show all that the registry knows of the model NAME."""
    import msgspec

    facts = msgspec.to_builtins(registry.get(name))
    if as_json:
        print_json(facts)
        return
    print_facts({key: value for key, value in facts.items() if value != {}})


@main.command()
@click.argument("name")
@click.argument("files", nargs=-1, required=True, metavar="FILE|FOLDER|GLOB...")
@click.option("--top", type=click.IntRange(min=1), help="How many classes to name.  [default: 1; in JSON 5]")
@_DEVICE
@_JSON
def predict(name: str, files: tuple[str, ...], top: int | None, device: str, as_json: bool) -> None:
    """Say what the pictures FILES show, by the model NAME (a registry name, a folder or hf-hub:org/name).

    One line a picture: file, class, probability, and with --top the next classes. Transparency is laid on white.
    Models of handwritten digits take ink on paper too: a picture is inverted when its strokes are darker than the
    background that its edge shows.
    """
    from zoo import inference
    from zoo.loading import load

    paths = inference.expand(files)
    model = load(name, device=device)
    rows: list[dict[str, Any]] = []
    codes = []
    for answer in inference.predict_files(model, paths, top=top or (5 if as_json else 1)):
        if isinstance(answer, inference.Failure):
            codes.append(answer.exit_code)
            click.echo(f"zoo: {answer.message}", err=True)
        elif as_json:
            rows.append(answer.to_dict())
        else:
            ranked = (word for label, score in answer.top for word in (label, f"{score:.4f}"))
            click.echo("\t".join((answer.file, *ranked)))
    if as_json:
        print_json(rows)
    if codes:  # each has had its line; among others a missing file is one of many inputs that were damaged
        sys.exit(codes[0] if len(codes) == len(paths) and len(set(codes)) == 1 else DamagedError.exit_code)


@main.command()
@click.argument("name")
@click.argument("prompt", default="")
@click.option("--max-new-tokens", type=int, default=100, show_default=True, help="At most so many.")
@click.option("--temperature", type=float, default=0.8, show_default=True, help="0 takes the likeliest each time.")
@click.option("--top-k", type=int, default=50, show_default=True, help="Draw from the so many likeliest; 0 from all.")
@click.option("--top-p", type=float, help="Draw from the fewest that have this share of the probability.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End where TEXT comes up; again for more.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Of the draws.")
@_DEVICE
@_JSON
def generate(name: str, prompt: str, device: str, as_json: bool, **options: Any) -> None:
    """Go on after PROMPT by the language model NAME, on stdout as it comes; "-" reads the prompt from stdin.

    An empty prompt starts a text.
    """
    from zoo.generation import continuation
    from zoo.layers import store_column_major
    from zoo.loading import load

    if prompt == "-":
        try:
            prompt = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError:
            raise UsageError("the prompt on stdin is no UTF-8 text") from None
    model = load(name, device=device)
    if device.startswith("cpu"):
        store_column_major(model)
    unsaid = [prompt]  # until the first of the new text comes: an error leaves stdout empty

    def say(piece: str) -> None:
        click.echo("".join((*unsaid, piece)), nl=False)
        unsaid.clear()

    answer = continuation(model, prompt, stream=None if as_json else say, **options)
    if as_json:
        print_json(answer.to_dict())
        return
    say("\n")
    if answer.stopped == "context":
        click.echo(f"zoo: the model's context is full after {answer.tokens} new tokens", err=True)
    if answer.beyond:
        click.echo(f"zoo: the last {answer.beyond} tokens lie beyond the length that the model learned from", err=True)


@main.command()
@click.argument("name")
@click.option("-o", "--output", type=click.Path(), help="Folder of the result.  [default: runs/NAME]")
@_DATA_DIR
@_DEVICE
@click.option("--precision", type=click.Choice(["no", "bf16", "fp16"]), help="Else as the recipe says.")
@click.option("--resume", is_flag=True, help="Go on from the checkpoint in the folder.")
@click.option("--overwrite", is_flag=True, help="Discard what is in the folder.")
@click.option("--recipe", metavar="NAME", help="Another recipe than the entry's.")
@_DATA
@click.option("--init", metavar="NAME", help="Start from these weights: an entry, a folder, or hf-hub:org/name.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A field of the recipe (epochs, lr, batch_size, shift, ...) or an argument of the architecture.",
)
@click.option("--stop-after", type=click.IntRange(min=1), metavar="STEPS", help="Stop early and leave a checkpoint.")
@_JSON
def train(name: str, output: str | None, settings: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Train the model NAME by its recipe. Ctrl-C stops cleanly; --resume goes on, bit for bit."""
    from zoo import training

    results = training.train(name, output=output, settings=read_settings(settings), progress=True, **options)
    if os.environ.get("RANK", "0") != "0":
        return  # of several processes one speaks
    if as_json:
        print_json(results)
    else:
        folder = output or Path("runs") / name
        known = ("top1", "accuracy", "perplexity", "word_perplexity")
        figures = (f"{key} {results[key]:.2f}" for key in known if results.get(key) is not None)
        click.echo("\t".join((str(folder), *figures, f"loss {results['loss']:.4f}")))


@main.command("eval")
@click.argument("name")
@click.option(
    "--batch", "batch_size", type=click.IntRange(min=1), help="At a time.  [default: 256 pictures; 8 windows]"
)
@click.option("--split", default="test", show_default=True, help="test, or of a text validation or train.")
@click.option("--context", type=click.IntRange(min=1), help="Window of a language model.  [default: as it was trained]")
@click.option("--stride", type=click.IntRange(min=1), help="By how many tokens it moves.  [default: half of it]")
@_DATA
@_DATA_DIR
@_DEVICE
@_JSON
def eval_(name: str, as_json: bool, **options: Any) -> None:
    """Recompute the figure of the model NAME on its test set, from weights and data.

    Of an image model top-1; of a language model the perplexity of a token and of a word of the text.
    """
    from zoo import training

    figures = training.evaluate_named(name, progress=sys.stderr.isatty(), **options).to_dict()
    if as_json:
        print_json(figures)
    else:
        width = max(map(len, figures)) + 1
        for key, value in figures.items():
            if value is None:
                continue
            click.echo(f"{key:{width}}{value:.4f}" if isinstance(value, float) else f"{key:{width}}{value}")


@main.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--onnx", is_flag=True, help="One ONNX file a model, checked against torch before it gets its name.")
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    default="exports",
    show_default=True,
    help="Folder for NAME/model.onnx, NAME the last part of a folder's.",
)
@click.option("--opset", type=int, default=20, show_default=True, help="Version of the ONNX operators, 18 to 23.")
@_DATA_DIR
@_JSON
def export(names: tuple[str, ...], onnx: bool, output: str, opset: int, data_dir: str | None, as_json: bool) -> None:
    """Export the models NAMES, or all whose weights are at hand, to OUTPUT/NAME/model.onnx."""
    from zoo.export import to_onnx
    from zoo.loading import load

    if not onnx:
        raise UsageError("say what to export to: --onnx")
    chosen = names or _at_hand()
    if not chosen:
        raise NotFoundError("no model has its weights at hand; `zoo train NAME` makes some")
    targets = [Path(output) / _last_part(name) / "model.onnx" for name in chosen]
    twice = [str(target) for target in dict.fromkeys(targets) if targets.count(target) > 1]
    if twice:
        raise UsageError(f"two of these would be written to {twice[0]}; export them one by one, each to its own -o")
    reports = []
    for name, path in zip(chosen, targets, strict=True):
        model = load(name)
        report = to_onnx(model, path, opset=opset, samples=_samples(model, data_dir))
        reports.append(report.to_dict())
        if not as_json:
            click.echo(f"{report.path}\t{report.bytes} bytes")
            click.echo(f"zoo: {report}", err=True)
    if as_json:
        print_json(reports)


def _last_part(name: str) -> str:
    """What a model's export is called: its name, or the last part of its folder or Hub id, without the revision."""
    from zoo.loading import HUB_PREFIX

    if name.startswith(HUB_PREFIX):
        return name.partition("@")[0].rpartition("/")[2]
    return name if name in registry.entries() else Path(name).resolve().name


def _at_hand() -> tuple[str, ...]:
    """The models that a command without names takes: all image models whose weights can be had."""
    from zoo import hub

    return tuple(name for name in registry.names(task="image-classification") if hub.at_hand(registry.get(name)))


def _samples(model: Any, data_dir: str | None) -> Any:
    """Real test pictures for the model's check, or None, with a word, where its data set is not at hand."""
    from zoo.data import open_dataset
    from zoo.data.preprocessing import Preprocessing
    from zoo.export import samples_of
    from zoo.modes import takes_text

    if takes_text(model):
        return None  # it is refused by the exporter, which says why
    preprocessing = Preprocessing.of(model)
    if model.pretrained_cfg.get("dataset") is None:
        click.echo(
            "zoo: checking on noise instead of real pictures: nothing says what data set this model is for", err=True
        )
        return None
    try:
        dataset = open_dataset(model.pretrained_cfg["dataset"], "test", data_dir, local_files_only=True)
    except NotFoundError as error:
        if data_dir is not None or os.environ.get("ZOO_DATA"):
            raise
        click.echo(f"zoo: checking on noise instead of real pictures: {error}", err=True)
        return None
    return samples_of(dataset, preprocessing)


@main.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_DEVICE
@click.option("--protocol", default="turns", show_default=True, help="turns, or paper: arXiv 2609.27735, table 3.")
@click.option("--batch", "--batch-size", "batch_size", type=int, help="Pictures a call.  [default: 1; paper 128]")
@click.option("--backend", "backends", multiple=True, help="eager or onnxruntime; again for both.  [default: both]")
@click.option("--rounds", type=int, help="Rounds of the protocol paper.  [default: 3]")
@click.option("--repeats", type=int, help="Calls of each that are measured, in each round.  [default: 50; paper 200]")
@click.option("--warmup", type=int, help="Calls before them that are not.  [default: 10; paper 50]")
@click.option("--threads", type=int, help="Of torch and ONNX Runtime alike.  [default: torch's]")
@click.option("--twin/--no-twin", default=True, help="Time the same network with standard attention beside it.")
@_JSON
def bench(
    names: tuple[str, ...],
    device: str,
    protocol: str,
    batch_size: int | None,
    backends: tuple[str, ...],
    rounds: int | None,
    repeats: int | None,
    warmup: int | None,
    threads: int | None,
    twin: bool,
    as_json: bool,
) -> None:
    """Time the models NAMES, or all whose weights are at hand, on DEVICE, each beside its twin."""
    from zoo.bench import run

    chosen = names or _at_hand()
    options = {"backends": backends} if backends else {}
    report = run(
        chosen,
        device=device,
        protocol=protocol,
        batch_size=batch_size,
        rounds=rounds,
        repeats=repeats,
        warmup=warmup,
        threads=threads,
        twin=twin,
        **options,
    )
    for line in report.warnings:
        click.echo(f"zoo: {line}", err=True)
    if as_json:
        print_json(report.to_dict())
    else:
        click.echo(report.table())


@main.command()
@_JSON
def env(as_json: bool) -> None:
    """Show versions, devices and threads, and installations that do not work together."""
    from zoo.bench import environment

    facts = environment()
    for line in facts["warnings"]:
        click.echo(f"zoo: {line}", err=True)
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)


if __name__ == "__main__":
    main()
