# SPDX-License-Identifier: Apache-2.0
"""`llampi report`: one page that stands alone, with the values of the run; what it refuses."""
import html.parser
import json
import os
import re
import sys

import runs

VOID = {"meta", "input", "br", "hr", "img", "link"}


class Page(html.parser.HTMLParser):
    """Elements that are closed in order, their ids, and the text of scripts."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.scripts, self.title = [], [], {}, ""
        assert text.startswith("<!DOCTYPE html>\n<html lang="), text[:60]
        self.feed(text)
        self.close()
        assert self.open == [], f"not closed: {self.open}"
        assert len(self.ids) == len(set(self.ids)), self.ids

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        assert not {"src", "href", "srcset", "action"} & set(attributes), f"<{tag} {attributes}> leads elsewhere"
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag not in VOID:
            self.open.append((tag, attributes.get("id", "")))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1][0] == tag, f"</{tag}> in {self.open}"
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1][0] == "script":
            name = self.open[-1][1]
            self.scripts[name] = self.scripts.get(name, "") + data
        if self.open and self.open[-1][0] == "title":
            self.title += data


def check_page(text, of_test, names):
    page = Page(text)
    assert page.title == "llampi report: " + ", ".join(names), page.title
    data = json.loads(page.scripts["data"])
    assert not re.search(r"https?:|@import|url\((?!#)|\bimport\b|fetch\(|XMLHttpRequest", text.replace(page.scripts["data"], "")), "it loads something"
    assert [run["name"] for run in data["runs"]] == names
    for run in data["runs"]:
        lines = of_test.lines(run["name"])
        steps, evaluations = [line for line in lines if "loss" in line], [line for line in lines if "eval_loss" in line]
        assert run["steps"]["step"] == [line["step"] for line in steps]
        assert run["steps"]["tokens"] == [line["tokens_seen"] for line in steps]
        assert run["steps"]["time"] == [line["time"] for line in steps]
        for key in steps[0].keys() - {"step", "tokens", "tokens_seen", "tokens_per_second_per_rank", "time"}:
            assert run["steps"]["values"][key]["mean"] == [line[key] for line in steps], key
        assert run["evaluations"]["loss"] == [line["eval_loss"] for line in evaluations]
        history = of_test.lines(run["name"], "history.jsonl")
        assert [event["kind"] for event in run["jobs"]] == [event["event"] for event in history if event["event"] in ("start", "end")], run["jobs"]
        saved = [event for event in history if event["event"] == "checkpoint"]
        assert run["checkpoints"] == {"group": 1, "step": [event["step"] for event in saved], "time": [event["time"] for event in saved]}
        assert sum(event["checkpoints"] for event in run["jobs"]) == len(saved)
        starts = [event for event in history if event["event"] == "start"]
        assert [job["planned"] for job in run["jobs"] if job["kind"] == "start"] == [start["planned_bytes"] for start in starts]
        assert run["memory"]["planned"]["device"] >= run["memory"]["used"]["device"] > 0
        assert run["config"]["data.seq_len"] == "16" and run["notes"]["data.train"]
    return data["runs"]


with runs.Runs(sys.argv[1]) as of_test:
    folder = of_test.folder
    of_test.train("one", 8, "--log.trace=2")
    of_test.lose_newest_checkpoint("one")
    of_test.train("one", 10)
    of_test.train("other", 5, "--optimizer.lr=1e-3")

    done = of_test.call("report", "one")
    assert re.fullmatch(r"one/report\.html: 1 run, [0-9.]+ KiB\n", done.stdout), done.stdout
    run = check_page((folder / "one/report.html").read_text(), of_test, ["one"])[0]
    assert run["summary"]["state"] == "done" and run["summary"]["jobs"] == 2 and run["summary"]["step"] == 10, run["summary"]
    assert [rank["rank"] for rank in run["trace"]] == [0] and 0 < run["trace"][0]["compute"] <= run["trace"][0]["step"]

    of_test.train("one", 12)
    of_test.call("report", "one")  # a page of its own is replaced
    assert check_page((folder / "one/report.html").read_text(), of_test, ["one"])[0]["summary"]["step"] == 12
    of_test.call("report", "one", "other", "--output", "both.html")
    both = check_page((folder / "both.html").read_text(), of_test, ["one", "other"])
    assert [run["config"]["optimizer.lr"] for run in both] == ["0.0003", "0.001"]
    assert not [path for path in folder.rglob("*.tmp")]

    def refused(sentence, *arguments):
        error = of_test.call(*arguments, status=2).stderr
        assert error == f"llampi: {sentence}\n", error

    (folder / "data").mkdir()
    several = of_test.call("report", "one", "data", "--output=new.html")
    assert several.stderr == "warning: data is left out: it is not the folder of a run (run.dir)\n" and ": 1 run, " in several.stdout, several
    (folder / "new.html").unlink()

    kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    (folder / "mine.html").write_text("<p>mine</p>")
    refused("mine.html already exists and is not a page that llampi report wrote: name another file, or replace it with --overwrite",
            "report", "one", "--output=mine.html")
    assert (folder / "mine.html").read_text() == "<p>mine</p>"
    for name in ("one/metrics.jsonl", "one/config.ini", "one/checkpoints/step-00000012.h5", "page"):
        refused(f"--output {name} does not end in .html; give the page a name that does", "report", "one", "--overwrite", "--output", name)
    refused("report needs the folder of a run (run.dir); see llampi report --help", "report")
    refused("report of several runs needs --output FILE.html", "report", "one", "other")
    refused("there is no folder none; give the run.dir of a run", "report", "none")
    refused("text is not a folder; give the run.dir of a run", "report", "text", "--output=new.html")
    refused(". is not the folder of a run: it has no metrics.jsonl; give the run.dir of a run", "report", ".")
    refused("there is no folder none; give the run.dir of a run", "report", "one", "none", "--output=new.html")
    assert not (folder / "new.html").exists()
    refused("no/page.html: there is no folder no; create it, or name another file", "report", "one", "--output=no/page.html")
    for path, content in kept.items():
        assert path.read_bytes() == content, f"{path} was changed"
    # A folder of somebody else's.
    other = {"user": 65534} if os.geteuid() == 0 else {}
    folder.chmod(0o755)
    (folder / "one").chmod(0o555)
    (folder / "one/history.jsonl").chmod(0)
    try:
        error = of_test.call("report", "one", status=2, **other).stderr
        assert error == "llampi: one/report.html cannot be written: Permission denied; write it elsewhere with --output FILE.html\n", error
        top = of_test.call("top", "one", **other).stdout
        assert top.startswith("one: done\nstep 12 of 12"), top  # without the history, as of an older program
        (folder / "one").chmod(0o600)
        for command in ("top", "report"):
            error = of_test.call(command, "one", status=2, **other).stderr
            assert error == "llampi: one/metrics.jsonl cannot be read: Permission denied\n", error
        error = of_test.call("inspect", "one/checkpoints/step-00000012.h5", status=2, **other).stderr
        assert error == "llampi: one/checkpoints/step-00000012.h5 cannot be read: Permission denied\n", error
    except PermissionError:
        print("not tested: the program is where only root may go")
    (folder / "one").chmod(0o755)
    (folder / "one/history.jsonl").chmod(0o644)
    of_test.call("report", "one", "--output=mine.html", "--overwrite")
    check_page((folder / "mine.html").read_text(), of_test, ["one"])
print("one page, with all values")
