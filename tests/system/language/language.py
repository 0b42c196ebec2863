#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns of phrase that a reader stumbles over, kept out of what people read.

    language.py ROOT                  README, docs/, CHANGELOG, CONTRIBUTING, TESTING, comments of include/, messages of src/;
                                      and whether each help text in docs/options.md stands without its option's name
    language.py ROOT --help LLAMPI    what `llampi --help`, each command's --help and `llampi man` print
    language.py ROOT --plant          that each turn is found in a sentence made for it
    language.py ROOT --list           all turns

Prints place, turn and what to write instead, and exits 1. Places that begin with a line of allowed.txt are counted, not refused:
delete a line there to switch the check on for that place. Code between fences and in code font is not read.
"""
import pathlib
import re
import subprocess
import sys

# (the turn as a regular expression, what to write instead, a sentence with it)
TURNS = [
    (r"for ever\b|\bwait(s|ed)? forever", "hang; never return", "It waits for ever."),
    (r"\bsomebody\b|\banybody\b|\bnobody\b|\beverybody\b", "name who: the user, a rank, another program", "Somebody looks."),
    (r"\bwhoever\b|\bwhosoever\b|\bwhichever way\b", "name who, or 'any'", "Whoever wrote it."),
    (r"\bof\b[^.;:|]*\bthat\b[^.;:|]*\bwhose\b|\bwhose\b[^.;:|]*\bwhose\b", "two sentences", "The part of ranks that wait whose disk is full."),
    (r"\bgoes astray\b|\bwent astray\b|\bastray\b", "diverges", "A rank goes astray."),
    (r"\b(is|are) none of\b", "is not one of", "It is none of them."),
    # "There is no folder" and "is no longer", "is no slower than" are plain; "it is no folder" is not.
    (r"(?<!there )\b(is|are) no (?!(longer|more|less|fewer|better|worse|\w+er than)\b)\w+", "is not a", "It is no folder."),
    (r"\banew\b|\bfor good\b|\bis to be\b|\bare to be\b|\balike\b", "again; permanently; will be, must be; in the same way", "It begins anew."),
    (r"\bbeside\b", "besides, next to, in addition to, in parallel with", "A save beside training."),
    (r"\bbehind (it|them|a|the|its|each)\b(?! (scenes|scene|others))", "after", "The space behind the text."),
    (r"\bin vain\b", "without success", "It waited in vain."),
    (r"\bto be had\b|\bat hand\b|\bby hand\b|\bof hand\b", "available; manually", "No GPU was at hand."),
    (r"\bas it comes\b|\bcomes about\b|\bcame to\b|\bcomes to\b", "by default; happens; results in", "What it comes to."),
    (r"\bof which\b|\bto which\b|\bof whom\b|\bfor which\b|\bbehind which\b", "two sentences, or 'where'", "A matrix of which it has rows."),
    (r"\bthence\b|\bhence\b|\bthereof\b|\btherein\b|\bthereby\b|\bwherein\b|\bwhereby\b|\bwhither\b|\bhitherto\b|\bhenceforth\b",
     "so, from this, of it, in it", "Hence it is."),
    (r"\bshall\b|\bought to\b|\bmust needs\b|\bneed not\b|\bmay not\b", "must, does not need to, cannot", "It shall be so."),
    (r"\bsay so\b|\bsays so\b|\bsaying so\b|\bsaid so\b", "reports it, warns, prints a message", "A warning says so."),
    (r"\bas (well|good) as it can be\b|\bif it can be\b", "where possible", "Short if it can be."),
    (r"\bso manyth\b|\bevery so many\b", "every N", "It keeps every so manyth."),
    (r"\bthe former\b|\bthe latter\b", "repeat the name", "The latter is faster."),
    (r"\b(learnt|whilst|amongst|unto|upon|nought|aught|albeit|lest|till)\b", "modern spelling", "Whilst it runs."),
    (r"\bmend\b|\bmends\b", "fix", "Mend the line."),
    (r"\bmust know of\b|\bknows nothing of\b|\bhas not got\b|\bhave not got\b", "does not know, does not have", "It has not got it."),
    (r"\bnot (built|made|there) yet\b", "not implemented yet", "It is not built yet."),
    (r"\bgone, silent\b|\bwithout a word\b|\bnot been heard of\b|\bis (heard|told) of\b", "exited without reporting; sends no heartbeat",
     "It ended without a word."),
    (r"\bis silent\b|\bsilent rank\b|\bsilent one\b", "unresponsive", "A rank is silent."),
    (r"\bright answers?\b", "correct answer", "All right answers."),
    (r"\bthe CPU's\b(?! (cache|cores|kernels|speed|memory))", "match the CPU; of the CPU", "44 tensors are the CPU's."),
    (r"\bdo(es)? something else\b|\bdo(es)? other things\b|\bdo different things\b", "issue different operations (desync)", "A rank does something else."),
    (r"\bgathered units?\b|\bunits gathered\b|\bwhole gradients?\b|\btravelling gradients?\b", "unsharded units, unsharded gradient",
     "The whole gradient."),
    (r"\bgathered and multiplied in\b|\bmultiplied in\b(?! \d)", "the dtype of ...", "It is multiplied in."),
    (r"\bto the bit\b|\bbit by bit\b", "bitwise", "They are equal to the bit."),
    (r"\bits? (is|are) (said|told|noticed|known) that\b|\bsays? it\b(?!s)", "name who says it", "It is said that."),
    (r"\bmind that\b|\bit is (as well|well) to\b|\bsee to it\b", "note that, make sure", "Mind that it waits."),
    (r"\bwith nothing else to do\b|\bnothing else running\b", "idle machine", "Two cores with nothing else to do."),
    (r"\b(a|an|the) good deal\b|\bnow and then\b|\bby and by\b|\bat its most\b|\bat their most\b", "often, at peak", "Now and then."),
    (r"\bwhat (of|from) (it|them|all)\b|\bwhat is left of\b", "name the thing", "What of them is not hidden."),
    (r"\bsay\b(?=[,.;)])(?<!to say)", "for example", "With h5py, say, it opens."),
    (r"\b(has|have|had) (it|them) (in full|all)\b|\bhas all of it\b", "lists, documents", "The plan has all of it."),
    (r"\b(does|do) not go (with|without)\b", "cannot be combined with, requires", "A does not go with B."),
    (r"\bas (ever|of old|before and after)\b", "as before", "As ever."),
    (r"\bdear\b", "expensive", "It is dear."),
    (r"\bby far the\b|\bno doubt\b|\bof course\b|\bin fact\b|\bindeed\b|\bneedless to say\b|\bsimply\b|\bobviously\b", "leave it out", "Of course it works."),
]
# A help text is read apart from its option's name too: in the manual page, by those who search, in a list of completions.
SCOPE = r"(?:(?:--[\w-]+[^:]{0,20}|with [^:]+|adapters|AdamW|hybrid strategies): )*"
FRAGMENTS = [
    (r"^" + SCOPE + r"(of|as|likewise|ditto|for|by|from|than|and|or|but|so|then|else|same|such|through)\b",
     "begin with a noun or a verb", "of the optimizer: bfloat16 or float32"),
    (r"^" + SCOPE + r"(with(?! [^:]+: )|without|in|on|at|to|if|when|whose|unless)\b", "begin with a noun or a verb", "with which it begins"),
    (r"^" + SCOPE + r"(it|its|they|them|their|these|those|this|that|he|one)\b", "name the thing", "its dtype; float32 or bfloat16"),
    (r"^[^.;:]*\b(likewise|ditto)\b|^[^.;:]*\binstead$", "name the other thing", "list the units instead"),
]
COMPILED_FRAGMENTS = [(re.compile(turn, re.I), instead, sentence) for turn, instead, sentence in FRAGMENTS]
COMPILED = [(re.compile(turn, re.I), instead, sentence) for turn, instead, sentence in TURNS]
DOCUMENTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "TESTING.md")


def read_markdown(path):
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    ") and not line.startswith("<!--"):
            yield number, re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "`", line))


def read_comments(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if m := re.search(r"//[/!<]*\s?(.*)", line):
            if "SPDX" not in line:
                yield number, m[1]


def read_messages(path):
    """Texts of at least three words between quotation marks, with the line that each begins in."""
    code = re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8"))
    for m in re.finditer(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*', code):
        text = re.sub(r'"\s*"', "", m[0])
        if text.count(" ") >= 2:
            yield code.count("\n", 0, m.start()) + 1, text


def places(root):
    for path in [root / name for name in DOCUMENTS] + sorted((root / "docs").glob("*.md")):
        for number, line in read_markdown(path):
            yield f"{path.relative_to(root)}:{number}", line
    for path in sorted((root / "include").rglob("*.hpp")):
        for number, line in read_comments(path):
            yield f"{path.relative_to(root)}:{number}", line
    for path in sorted(path for path in (root / "src").rglob("*") if path.suffix in (".cpp", ".hpp", ".cu", ".cuh")):
        for number, line in read_messages(path):
            yield f"{path.relative_to(root)}:{number}", line


def help_texts(root):
    """Of each row of docs/options.md, which another test compares with the program, the last column."""
    for number, line in enumerate((root / "docs/options.md").read_text(encoding="utf-8").splitlines(), 1):
        if m := re.match(r"\| `([\w.-]+)` \|.*\| ([^|]+) \|$", line):
            yield f"docs/options.md:{number} {m[1]}", m[2]


def places_of_help(llampi):
    def printed(*arguments):
        return subprocess.run([llampi, *arguments], capture_output=True, text=True, check=True).stdout

    usage = printed("--help")
    commands = re.findall(r"^  ([a-z]+) +[a-z]", usage.split("Commands:")[1], re.M)
    texts = {"help": usage, "help man-page": printed("man").replace("\\-", "-").replace("\\(aq", "'")}
    for command in commands:
        done = subprocess.run([llampi, command, "--help"], capture_output=True, text=True)
        texts[f"help {command}"] = done.stdout
    for place, text in texts.items():
        text = re.sub(r"\s+", " ", text)  # sentences are folded; a key or a place in its list tells where
        for sentence in re.split(r"(?<=[.;:]) (?=[A-Z-])", text):
            yield f"{place}: ...{sentence[:60]}", sentence


def faults(lines, allowed, turns):
    for place, line in lines:
        for turn, instead, _ in turns:
            if m := turn.search(line):
                excused = any(place.startswith(prefix) for prefix in allowed)
                yield excused, f"{place}: \"{m[0]}\"; write: {instead}"


def main():
    root = pathlib.Path(sys.argv[1])
    mode = sys.argv[2] if len(sys.argv) > 2 else ""
    if mode == "--list":
        print("\n".join(f"{turn:70} {instead}" for turn, instead, _ in TURNS + FRAGMENTS))
        return
    if mode == "--plant":
        blind = [turn.pattern for turn, _, sentence in COMPILED + COMPILED_FRAGMENTS if not turn.search(sentence)]
        print("\n".join(f"not found in its sentence: {turn}" for turn in blind) or f"language: {len(TURNS + FRAGMENTS)} turns, each is found")
        sys.exit(bool(blind))
    allowed = [line.strip() for line in (pathlib.Path(__file__).parent / "allowed.txt").read_text().splitlines()
               if line.strip() and not line.startswith("#")]
    found = list(faults(places_of_help(sys.argv[3]) if mode == "--help" else places(root), allowed, COMPILED))
    if mode != "--help":
        texts = list(help_texts(root))
        if not texts:
            sys.exit("language: docs/options.md has no rows of options")
        found += faults(texts, allowed, COMPILED_FRAGMENTS)
    refused = [text for excused, text in found if not excused]
    print("\n".join(refused))
    print(f"language: {len(refused)} turns to avoid, {len(found) - len(refused)} more where allowed.txt still allows them")
    sys.exit(bool(refused))


main()
