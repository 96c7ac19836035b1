"""The types of number that values can have on their way."""

from typing import Literal

NumberType = Literal["float32", "bfloat16", "float16"]
