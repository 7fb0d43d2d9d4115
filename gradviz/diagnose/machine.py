"""A report for programs: as JSON, and as SARIF 2.1.0."""

from __future__ import annotations

from typing import Any

from gradviz.diagnose.finding import ERROR, NOTE, WARNING, Finding, Report
from gradviz.diagnose.fix import Patch
from gradviz.diagnose.rank_rule import RankRule
from gradviz.diagnose.rule import Rule
from gradviz.diagnose.rule_page import markdown, page_of
from gradviz.diagnose.run_rules import rule_called
from gradviz.system.paths import uri
from gradviz.tracefile import Site
from gradviz.version import __version__

_LEVELS = {ERROR: "error", WARNING: "warning", NOTE: "note"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_json(report: Report) -> dict[str, Any]:
    """The report as plain data."""
    return {
        "findings": [
            {
                "rule": finding.rule,
                "severity": finding.severity,
                "message": finding.message,
                "fix": finding.fix,
                **({"replayed": finding.replayed} if finding.replayed else {}),
                "file": finding.file or None,
                "line": finding.line or None,
                "node": finding.node or None,
                "pass": finding.number or None,
                **({"ranks": list(finding.ranks)} if finding.ranks else {}),
            }
            for finding in report.findings
        ],
        "checked": list(report.checked),
        "not_checked": [{"rule": rule, "reason": reason} for rule, reason in report.not_checked],
    }


def as_sarif(report: Report) -> dict[str, Any]:
    """The report as a SARIF log. Consequences are related locations of their cause."""
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "gradviz",
                        "version": __version__,
                        "rules": [_rule(rule) for rule in report.checked],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding) for finding in report.findings],
                "invocations": [
                    {
                        "executionSuccessful": True,
                        "toolExecutionNotifications": [
                            {
                                "level": "note",
                                "message": {"text": f"not checked: {reason}"},
                                "associatedRule": {"id": rule},
                            }
                            for rule, reason in report.not_checked
                        ],
                    }
                ],
            }
        ],
    }


def _rule(name: str) -> dict[str, Any]:
    """The SARIF description of a rule, for a single trace or between ranks."""
    rule = rule_called(name)
    return {
        "id": name,
        "shortDescription": {"text": rule.looks_for},
        "help": _help(rule),
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _help(rule: Rule | RankRule) -> dict[str, str]:
    page = page_of(rule)
    return {"text": f"{page.finds} {page.why} Cure: {page.cure}", "markdown": markdown(page)}


def _result(finding: Finding) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.message}. Cure: {finding.fix}"},
        **({"properties": {"ranks": list(finding.ranks)}} if finding.ranks else {}),
        "locations": [_location(finding.site)] if finding.site is not None else [],
        **({"fixes": [_fix(finding, finding.patch)]} if finding.patch is not None else {}),
    }
    related = [
        {**_location(follows.site), "message": {"text": f"{follows.rule}: {follows.message}"}}
        for follows in finding.consequences
        if follows.site is not None
    ]
    return {**result, "relatedLocations": related} if related else result


def _fix(finding: Finding, patch: Patch) -> dict[str, Any]:
    """The edits of a cure as replacements of regions."""
    replacements = []
    for edit in sorted(patch.edits, key=lambda edit: edit.start):
        (line, column), (end_line, end_column) = patch.position(edit.start), patch.position(edit.end)
        region = {"startLine": line, "startColumn": column, "endLine": end_line, "endColumn": end_column}
        replacements.append({"deletedRegion": region, "insertedContent": {"text": edit.new}})
    change = {"artifactLocation": {"uri": uri(patch.file)}, "replacements": replacements}
    return {"description": {"text": finding.fix}, "artifactChanges": [change]}


def _location(site: Site) -> dict[str, Any]:
    place = site.place
    region: dict[str, int] = {"startLine": max(place.line, 1)}
    if place.col >= 0:
        region |= {"startColumn": place.col + 1, "endLine": place.end_line, "endColumn": place.end_col + 1}
    return {"physicalLocation": {"artifactLocation": {"uri": uri(place.file)}, "region": region}}
