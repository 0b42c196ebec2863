# SPDX-License-Identifier: Apache-2.0
"""The outline of a Jinja text (src/data/jinja_outline.hpp) by Jinja's own lexer: what the C++ one is compared with."""
import re

import jinja2

ENVIRONMENT = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)  # as transformers has it
DEFAULT_SYSTEM = re.compile(r"<\|im_start\|>system\n((?:(?!<\|im_).)+)<\|im_end\|>\n", re.DOTALL)


def tokens(text):
    """Pairs of kind and text, as they stand there."""
    return [(kind, value) for _, kind, value in ENVIRONMENT.lexer.tokeniter(text, None)]


def outline(text):
    """Fingerprint in hexadecimal digits, date and default system message."""
    words, data = [], ""
    date, system = "", ""
    for kind, value in tokens(text):
        if kind in ("variable_begin", "block_begin"):
            words += (["=" + data] if data else []) + ["{{" if kind == "variable_begin" else "{%"]
            data = ""
        elif kind == "data":
            data += value
        elif kind == "string":
            string = value[1:-1].encode("ascii", "backslashreplace").decode("unicode-escape")
            default = DEFAULT_SYSTEM.fullmatch(string)
            if words[-3:] == ["set", "date_string", "="] and not date:
                date, string = string, "date"
            elif default and not system:
                system, string = default[1], "default system"
            words.append("'" + string)
        elif kind in ("name", "integer", "float", "operator"):
            words += re.findall(r"\w+|\W", value)
    words += ["=" + data] if data else []
    value = 0xCBF29CE484222325
    for word in (word.encode() for word in words):
        for byte in str(len(word)).encode() + b":" + word:
            value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}", date, system
