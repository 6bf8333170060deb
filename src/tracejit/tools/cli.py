"""`tracejit demo` and `tracejit show FILE`: arguments in, one function called, its exit status out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tracejit.errors import TracejitError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 0 where everything it promises held."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except (TracejitError, FileNotFoundError) as error:  # what the user can mend is said without a traceback
        print(f"tracejit: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tracejit", description="A tracing JIT for tensor programs.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="train a small CNN, eager and compiled; export it and load it back")
    demo.add_argument("--data", metavar="DIR", help="a folder with the four IDX files of (Fashion-)MNIST")
    demo.add_argument("--epochs", type=_positive, metavar="N", help="passes over the data (30; with --data 3)")
    demo.add_argument("--out", default="digits.tj", metavar="FILE", help="where the trained model goes (digits.tj)")
    demo.set_defaults(run=_demo)
    show = commands.add_parser("show", help="print the signature and the graph of an exported file")
    show.add_argument("file", metavar="FILE")
    show.set_defaults(run=_show)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _demo(options: argparse.Namespace) -> int:
    from tracejit.tools.demo import demo

    return demo(options.data, options.epochs, options.out)


def _show(options: argparse.Namespace) -> int:
    from tracejit.export import load

    function = load(options.file)
    print(function.signature)
    for name, array in function.weights.items():
        print(f"  {name}: {array.dtype}{list(array.shape)}")
    print(function.graph, end="")
    return 0
