"""Make the messages of the wire's schema from their declarations, and the module that protobuf makes of it.

    python scripts/wire_schema.py

What stands in `wire.proto` before the messages (frames, chunks, bodies, layouts) is written by hand, and
stays. The version of grpcio-tools in pyproject.toml makes the module.
"""

import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec.inspect as types

from offbeat.net.messages import FromServer, FromSite, Message
from offbeat.net.wire.fields import BODY_FIELDS, fields_of, kind, optional

SOURCE = Path(__file__).parents[1] / "src"
PROTO = SOURCE / "offbeat" / "net" / "wire" / "wire.proto"
MARK = "// ---- messages: made by scripts/wire_schema.py ----\n"
FIRST_OF_SERVER, LAYOUT = 51, 15
"""The number of the first message of the server, and of the layout that comes with a model."""
_SCALARS = {
    types.IntType: "uint64", types.FloatType: "double", types.StrType: "string", types.BytesType: "bytes",
    types.BoolType: "bool",
}  # fmt: skip


def type_text(told: types.Type) -> str:
    """A type in protobuf's words."""
    match told:
        case types.UnionType():
            return f"optional {type_text(optional(told) or told)}"
        case types.VarTupleType(item_type=item):
            return f"repeated {type_text(item)}"
        case types.DictType(value_type=types.AnyType()):
            return "string"
        case types.DictType():
            return "map<string, double>"
        case types.DataclassType(cls=cls) | types.StructType(cls=cls):
            return cls.__name__
        case _:
            return _SCALARS[type(told)]


def nested(struct: type) -> list[type]:
    """The structs in the fields of a message, and the message."""
    inner = (told.item_type for told in fields_of(struct).values() if isinstance(told, types.VarTupleType))
    return [*(each.cls for each in inner if isinstance(each, types.DataclassType)), struct]


def declaration(struct: type) -> str:
    """A message of the schema."""
    doc = (struct.__doc__ or "").strip().splitlines()[0]
    lines = [
        f"{type_text(told)} {name} = {n};" for n, (name, told) in enumerate(fields_of(struct).items(), 1)
    ]
    if "model" in BODY_FIELDS.intersection(struct.__annotations__):
        lines.append(f"optional Layout layout = {LAYOUT};")
    body = "".join(f"  {line}\n" for line in lines)
    return f"// {doc}\nmessage {struct.__name__} {{\n{body}}}\n"


def envelope() -> str:
    """The message that has one of all the others, and announces its body."""
    lines = []
    for first, union in ((1, FromSite), (FIRST_OF_SERVER, FromServer)):
        for number, message in enumerate(get_args(union), first):
            if first == 1 or message not in get_args(FromSite):
                lines.append(f"    {message.__name__} {kind(message)} = {number};\n")
    head = "// A message. Its body follows, if it has one, cut into chunks.\nmessage Envelope {\n"
    return f"{head}  oneof message {{\n{''.join(lines)}  }}\n  optional Body body = 100;\n}}\n"


def schema() -> str:
    """The whole of wire.proto."""
    by_hand = PROTO.read_text(encoding="utf-8").split(MARK)[0]
    messages = dict.fromkeys(each for message in get_args(Message) for each in nested(message))
    return "\n".join([by_hand + MARK, envelope(), *map(declaration, messages)])


def main() -> None:
    """Write the schema, and the module."""
    PROTO.write_text(schema(), encoding="utf-8")
    output = [f"--python_out={SOURCE}", f"--pyi_out={SOURCE}", str(PROTO.relative_to(SOURCE))]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I", SOURCE, *output], check=True, cwd=SOURCE)


if __name__ == "__main__":
    main()
