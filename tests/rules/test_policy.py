"""May this call be made? The operator's rules, as a function and as a table."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import pytest

from ondol import policy, values
from ondol.errors import InvalidInput
from ondol.policy import Allow, AskFirst, Deny, Permission, PolicyCall, PolicyRules, Rule


def a_call(tool: str = "refund", user: str | None = "kim", **of: Any) -> PolicyCall:
    known = {"tenant": "default", "agent": "support", "session": "s", "effect": "once", "arguments": {"amount": 30}}
    return PolicyCall(tool=tool, user=user, **{**known, **of})


def says(rules: PolicyRules, call: PolicyCall) -> str:
    return policy.permission(policy.said(rules, call), lambda: None).decision or ""


def test_the_first_rule_that_fits_decides() -> None:
    rules = PolicyRules([
        Rule(tool="refund*", when=lambda arguments: arguments["amount"] > 100, then="deny", reason="too much"),
        Rule(tool="refund*", when=lambda arguments: arguments["amount"] > 20, then="ask", reason="a lot"),
        Rule(tool="refund*", then="allow", reason="small"),
    ])  # fmt: skip
    said = [says(rules, a_call("refund_order", arguments={"amount": n})) for n in (200, 30, 5)]
    assert said == ["deny: too much", "ask: the policy asks: a lot", "allow: small"]


@pytest.mark.parametrize(
    ("names", "fits", "does_not"),
    [
        ({"user": "kim"}, {"user": "kim"}, {"user": None}),
        ({"user": ""}, {"user": None}, {"user": "kim"}),
        ({"tenant": "acme*"}, {"tenant": "acme-1"}, {"tenant": "other"}),
        ({"agent": "support"}, {"agent": "support"}, {"agent": "Support"}),
        ({"session": "vip-?"}, {"session": "vip-1"}, {"session": "vip-12"}),
        ({"effect": "read"}, {"effect": "read"}, {"effect": "once"}),
        ({"tool": "refund"}, {"tool": "refund"}, {"tool": "refund_all"}),
    ],
)
def test_a_rule_is_about_what_it_names(names: Any, fits: Any, does_not: Any) -> None:
    rule = Rule(then="deny", **names)
    assert rule.fits(a_call(**fits))
    assert not rule.fits(a_call(**does_not))


def test_a_tool_that_no_rule_names_is_unknown_and_one_that_none_fits_gets_the_default() -> None:
    rules = PolicyRules([Rule(tool="refund", user="lee", then="allow")], default="deny", unknown="ask")
    assert says(rules, a_call(user="lee")) == "allow"
    assert says(rules, a_call(user="kim")) == "deny"
    assert says(rules, a_call("wire")) == "ask: the policy asks: no rule names this tool"
    assert says(PolicyRules([Rule(tool="refund", then="deny")]), a_call("wire")) == "allow"


def raises(call: PolicyCall) -> Allow:
    raise SystemExit("a bug")


async def later(call: PolicyCall) -> Allow:
    return Allow()


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (raises, "the policy raised SystemExit"),
        (lambda call: None, "the policy said NoneType, not Allow, AskFirst or Deny"),
        (lambda call: True, "the policy said bool, not Allow, AskFirst or Deny"),
        (lambda call: later(call), "the policy said coroutine, not Allow, AskFirst or Deny"),
        (PolicyRules([Rule(then="allow", when=lambda a: a["missing"] > 1)]), "the policy raised KeyError"),
    ],
)
def test_a_policy_that_breaks_means_ask(broken: Any, why: str) -> None:
    assert policy.said(broken, a_call()) == AskFirst(why)


def test_without_a_policy_the_tool_decides_alone() -> None:
    assert policy.permission(None, lambda: None) == Permission()
    assert policy.permission(None, lambda: "every call asks") == Permission("ask: every call asks", "every call asks")


def test_an_allowing_policy_does_not_take_away_the_tools_own_question() -> None:
    assert policy.permission(Allow("fine"), lambda: None) == Permission("allow: fine")
    assert policy.permission(Allow("fine"), lambda: "every call asks").asks == "every call asks"


def test_a_denial_asks_nobody_and_not_even_the_tool() -> None:
    def not_called() -> str:
        raise AssertionError

    denied = policy.permission(Deny("not on Sundays"), not_called)
    assert denied == Permission("deny: not on Sundays", None, "not called: the policy denies it (not on Sundays)")


@pytest.mark.parametrize(
    "nonsense",
    [
        lambda: Rule(then="maybe"),
        lambda: Rule(then="ask", effect="twice"),
        lambda: Rule(then="ask", when="amount > 1"),
        lambda: Rule(then="ask", user=None),
        lambda: PolicyRules(["refund"]),
        lambda: PolicyRules([], unknown="perhaps"),
        lambda: policy.checked("allow"),
        lambda: policy.checked(later),
    ],
)
def test_nonsense_is_refused_where_it_is_written(nonsense: Any) -> None:
    with pytest.raises(InvalidInput):
        nonsense()


@pytest.mark.parametrize("reason", [7, None, ["a", "b"], "\ud800\0", object()])
def test_a_reason_that_is_no_text_is_shown_as_one(reason: object) -> None:
    for kind in (Allow, AskFirst, Deny):
        permission = policy.permission(policy.said(PolicyOf(kind(cast(str, reason))), a_call()), lambda: None)
        values.dumps(permission).encode()


class PolicyOf(NamedTuple):
    answer: policy.Said

    def __call__(self, call: PolicyCall) -> policy.Said:
        return self.answer
