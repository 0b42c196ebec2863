#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The links of the manual, of README and of the other documents.

    links.py ROOT           links and anchors of the Markdown files, as GitHub reads them; prints what is wrong and exits 1
    links.py ROOT SITE      also of the site that MkDocs has built: links, anchors, and that nothing comes from other servers
    links.py ROOT --plant   that planted mistakes are found

What is checked in the sources:
  link      a relative link leads to a file that exists; from docs/, to a page or picture in docs/
  anchor    an anchor is a heading of its page, under the same name on GitHub and in the site
  nav       every page is in the navigation of mkdocs.yml
  fence     code stands between fences that say what it is: sh, text, ini, json, python, ...
  table     a bar in code font within a table is written so that GitHub and MkDocs both print it
  list      a list begins after an empty line, and what belongs to an item is indented by 4: MkDocs reads it otherwise
  path      a file of the repository that is named in code font exists
"""
import html.parser
import pathlib
import re
import shutil
import sys
import tempfile
import unicodedata
import urllib.parse

TOP = ("README.md", "CONTRIBUTING.md", "TESTING.md", "CHANGELOG.md")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(r"`((?:src|include|tests|bench|docs|scripts|jobscripts|examples|input|cmake|packaging|emulator)/[\w./-]*\w)`")
FENCE = re.compile(r"^ *```(.*)$")


def github_slug(text):
    text = "".join(c for c in text.lower() if c in " -_" or unicodedata.category(c)[0] in "LN")
    return text.replace(" ", "-")


def site_slug(text):
    """As Python-Markdown's toc makes it."""
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


class Page:
    def __init__(self, path):
        self.lines = path.read_text(encoding="utf-8").splitlines()
        self.fences, self.text, self.anchors = [], [], {}
        inside = False
        for number, line in enumerate(self.lines, 1):
            if m := FENCE.match(line):
                inside = not inside
                if inside:
                    self.fences.append((number, m[1].strip()))
                continue
            if inside:
                continue
            self.text.append((number, line))
            if m := re.match(r"#+ +(.*)", line):
                heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", m[1]).replace("`", "").replace("*", "")
                self.anchors[github_slug(heading)] = site_slug(heading)


def faults(root):
    docs = sorted((root / "docs").glob("*.md"))
    pages = {path: Page(path) for path in [root / name for name in TOP] + docs}
    nav = (root / "mkdocs.yml").read_text(encoding="utf-8")
    for path, page in pages.items():
        name = path.relative_to(root).as_posix()
        if path in docs and not re.search(rf"^ +- .*: {re.escape(path.name)}$", nav, re.M):
            yield f"nav: {name} is not in mkdocs.yml"
        for number, kind in page.fences:
            if not kind:
                yield f"fence: {name}:{number} does not say what the code is"
        before = ""
        for number, line in page.text:
            if path in docs and re.match(r" {4,}\S", line) and not before.strip():
                if not any(re.match(r"(\d+\.|-) ", l) for n, l in page.text if number - 30 < n < number):
                    yield f"fence: {name}:{number} is indented code; use a fence"
            if path in docs and re.match(r"(-|\d+\.) ", line) and before.strip() and not re.match(r"(-|\d+\.| ) ?", before):
                yield f"list: {name}:{number} begins a list without an empty line before it"
            if path in docs and re.match(r" {1,3}(-|\d+\.) ", line):
                yield f"list: {name}:{number} is indented by less than 4"
            before = line
            if path in docs and re.search(r"`[^`]*\\\|[^`]*`", line):
                yield f"table: {name}:{number} has \\| in code font, which MkDocs prints; write <code>&#124;</code>"
            for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
                if re.match(r"[a-z]+:", target):
                    continue
                file, _, anchor = target.partition("#")
                goal = (path.parent / urllib.parse.unquote(file)).resolve() if file else path.resolve()
                if not goal.exists():
                    yield f"link: {name}:{number} leads to {target}, which does not exist"
                elif path in docs and (root / "docs").resolve() not in goal.parents:
                    yield f"link: {name}:{number} leads out of docs/, to {target}; name the file instead"
                elif anchor and goal.suffix == ".md":
                    known = (pages.get(root / goal.relative_to(root.resolve())) or Page(goal)).anchors
                    if anchor not in known:
                        yield f"anchor: {name}:{number} leads to {target}, which is no heading there"
                    elif known[anchor] != anchor and goal.parent.name == "docs":
                        yield f"anchor: {name}:{number}: {target} is called {known[anchor]} in the site; simplify the heading"
            if path.name != "CHANGELOG.md":  # which speaks of other times
                for target in PATH.findall(line):
                    if not any(root.glob(target + "*")) and "NAME" not in target and "..." not in target:
                        yield f"path: {name}:{number} names {target}, which does not exist"


class Reader(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids, self.links, self.loaded = set(), [], []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if "id" in values:
            self.ids.add(values["id"])
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag == "link" and values.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(values.get("href", ""))
        if tag in ("script", "img", "iframe", "source", "object", "video"):
            self.loaded.append(values.get("src") or values.get("data") or "")


def faults_of_site(site):
    pages = {}
    for path in sorted(site.rglob("*.html")):
        pages[path] = Reader()
        pages[path].feed(path.read_text(encoding="utf-8"))
    for path, page in pages.items():
        name = path.relative_to(site)
        for target in page.loaded:
            if re.match(r"(https?:)?//", target):
                yield f"offline: {name} loads {target}"
        for target in page.links + page.loaded:
            if re.match(r"[a-z]+:|//", target) or path.name == "404.html":
                continue
            file, _, anchor = target.partition("#")
            goal = (path.parent / urllib.parse.unquote(file.partition("?")[0])).resolve() if file else path
            if goal.is_dir():
                goal /= "index.html"
            if not goal.exists():
                yield f"site: {name} leads to {target}, which does not exist"
            elif anchor and goal in pages and urllib.parse.unquote(anchor) not in pages[goal].ids:
                yield f"site: {name} leads to {target}, which has no such anchor"
    for path in sorted(site.rglob("*.css")):
        for target in re.findall(r"url\(\s*[\"']?((?:https?:)?//[^\"')]+)", path.read_text(encoding="utf-8")):
            yield f"offline: {path.relative_to(site)} loads {target}"


PLANTED = {
    "link": "[x](nowhere.md)\n",
    "anchor": "[x](index.md#no-such-heading)\n",
    "fence": "```\ncode\n```\n",
    "list": "text\n- item\n",
    "table": "`a \\| b`\n",
    "path": "`src/no_such_file.cpp`\n",
}


def plant(root):
    """Each mistake in a copy of the documents must be found, and nothing else."""
    for kind, text in list(PLANTED.items()) + [("nav", None)]:
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder)
            for entry in root.iterdir():
                if entry.name != "docs":
                    (copy / entry.name).symlink_to(entry.resolve())
            shutil.copytree(root / "docs", copy / "docs")
            target = copy / "docs" / ("index.md" if text else "orphan.md")
            target.write_text((target.read_text() if text else "# Orphan\n") + "\n" + (text or ""))
            found = list(faults(copy))
            if [f.split(":")[0] for f in found] != [kind]:
                yield f"planted {kind}, found {found}"


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    found = list(faults(root))
    if sys.argv[2:] == ["--plant"]:
        found += list(plant(root)) if not found else []
    elif len(sys.argv) > 2:
        found += list(faults_of_site(pathlib.Path(sys.argv[2]).resolve()))
    print("\n".join(found) or "links: all lead somewhere")
    sys.exit(bool(found))


main()
