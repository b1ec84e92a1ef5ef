#!/usr/bin/env python3
"""Changes a copy of Kueue's specs with ProvisioningRequests so that Setu answers the requests.

Each step that plays the autoscaler becomes a wait for the condition that it set. Text that is not as expected is an error. Prints how
many requests the specs wait for Setu to provision, and to fail.
"""

import re
import sys
from collections import Counter
from pathlib import Path

SUITES = {
    "provisioning": "test/integration/singlecluster/controller/admissionchecks/provisioning",
    "tas": "test/integration/singlecluster/tas",
}

# Specs of what Setu never does there, by a part of their names, with how many there are and why. They become pending.
EXCLUDED = {
    "CapacityRevoked": (2, "Setu replaces lost nodes, and never revokes the capacity of Kueue's requests"),
    "BookingExpired": (2, "a booking ends only while Kueue does not admit the Workload, which it does here"),
    "ready after small delay": (1, "Setu provisions a request only when its nodes are ready"),
    "second-pass backoff": (1, "the same"),
}

# What else differs, and how often it occurs: the class; a resource that no instance type has; a check that the nodes stay; and in the
# specs of topologies, the selector of the nodes. The nodes that those specs make do not match it.
CLASS = '"atomic.setu.kueue.x-k8s.io"'
STAY = 'ginkgo.By("Checking the admission check remains ready", func() {\n'
TEXTS = [
    ("provisioning", '"provisioning-class"', CLASS, 5),
    ("provisioning", 'customResourceOne = "example.org/res1"', 'customResourceOne = "nvidia.com/gpu"', 1),
    ("provisioning", STAY, f"{STAY}expectNodesOfSetuToStay(&createdRequest)\n", 1),
    ("tas", '"provisioning-class"', CLASS, 1),
    ("tas", ' "dedicated-selector-key",', ' "setu.kueue.x-k8s.io/gang",', 1),
    ("tas", ' "dedicated-selector-detail",', ' "gang",', 1),
]
# Nodes take longer than a step that sets a condition.
TIMEOUT = ("\tTimeout      = 10 * time.Second", "\tTimeout      = 90 * time.Second", 1)

# The conditions that the specs wait for, and how often. The message is what Kueue shows of one.
STEPS = {"Accepted True": 1, "Provisioned False": 1, "message": 1, "Provisioned True": 13, "Failed True": 7}
# The weather before a wait for failure, and before any other: no node comes up until a spec waits for it.
SHORT, LATE = "[{capacity: 0}]", "[{registrationDelay: 1h}]"
SPEC = re.compile(r'ginkgo\.It\(\s*"([^"]+)",(?:\s*framework\.SlowSpec,)?\s*func\(\) \{')
STEP = re.compile(r"""gomega\.Eventually\(func\(g gomega\.Gomega\) \{
\s*g\.Expect\(k8sClient\.Get\(ctx, (?P<key>\w+), &createdRequest\)\)\.\w+\(gomega\.Succeed\(\)\)
\s*apimeta\.SetStatusCondition\(&createdRequest\.Status\.Conditions, metav1\.Condition\{
\s*Type:\s*autoscaling\.(?P<type>\w+),
\s*Status:\s*metav1\.Condition(?P<status>\w+),
(?:\s*(?:Reason|Message): .*\n)+\s*\}\)
(?:\s*createdRequest\.Status\.ProvisioningClassDetails.*\n)*\s*g\.Expect\(k8sClient\.Status\(\)\.Update\(ctx, &createdRequest\)\).*
\s*\}, util\.Timeout, util\.Interval\)\.Should\(gomega\.Succeed\(\)\)
|util\.ExpectAdmissionCheckStateWithMessage\([\w\s,.]*"Not provisioned, [^"]+",\s*\)
""")
# What is known only once Setu has answered, and how often: the name of a node, and why a request failed.
RESULTS = [
    (re.compile(r'(?<=Values: \[\]string\{)(\s*)"x1"'), r"\1nodeOfSetu(&createdRequest)", 3),
    (re.compile(r"fmt\.Sprintf\(`(Deactivated due to [^`]+)`, ac\.Name\)"), r"withReasonOfSetu(`\1`, ac.Name, &createdRequest)", 2),
]


def expect(what: str, found: int, wanted: int) -> None:
    if found != wanted:
        sys.exit(f"Kueue's specs have {what!r} {found} times, not {wanted} times: adapt tests/e2e/peers/overlay.py")


def replaced(text: str, old: str, new: str, times: int) -> str:
    expect(old, text.count(old), times)
    return text.replace(old, new)


def kind(step: re.Match) -> str:
    return f"{step['type']} {step['status']}" if step["key"] else "message"


def wait(step: re.Match, then: str) -> str:
    call = "expectMessageOfSetu(wlKey, provReqKey, ac.Name)"
    if step["key"]:
        call = f"awaitSetu({step['key']}, &createdRequest, autoscaling.{step['type']}, metav1.Condition{step['status']})"
    return f'{call}\nsetWeather("{then}")\n'


def overlaid(spec: str, seen: Counter) -> str:
    """A spec, from its first line on, with waits. After each, the weather is set for the next one."""
    opening, steps = SPEC.match(spec), list(STEP.finditer(spec))
    excluded = [part for part in EXCLUDED if opening and part in opening[1]]
    if excluded:
        seen.update(excluded)
        return spec.replace("ginkgo.It(", "ginkgo.PIt(", 1)
    if not steps:
        return spec
    seen.update(kind(step) for step in steps)
    weathers = [SHORT if step["type"] == "Failed" else LATE for step in steps] + [LATE]
    following = iter(weathers[1:])
    body = STEP.sub(lambda step: wait(step, next(following)), spec[opening.end() :])
    expect("another step that plays the autoscaler", body.count("Update(ctx, &createdRequest)"), 0)
    for old, new, _ in RESULTS:
        body, times = old.subn(new, body)
        seen[old.pattern] += times
    return f'{opening[0]}\nsetWeather("{weathers[0]}")\n{body}'


def main() -> None:
    module, seen = Path(sys.argv[1]), Counter()
    for suite, folder in SUITES.items():
        file = module / folder / f"{suite}_test.go"
        text = file.read_text()
        for name, *change in TEXTS:
            text = replaced(text, *change) if name == suite else text
        specs = re.split(r"(?=ginkgo\.It\()", text)
        file.write_text("".join(overlaid(spec, seen) for spec in specs))
        helpers = Path(__file__).with_name("setu_test.go").read_text()
        file.with_name("setu_test.go").write_text(helpers.replace("package peers", f"package {suite}"))
    results = {old.pattern: times for old, _, times in RESULTS}
    wanted = {**{part: times for part, (times, _) in EXCLUDED.items()}, **STEPS, **results}
    for what in {**wanted, **seen}:
        expect(what, seen[what], wanted.get(what, 0))
    constants = module / "test/util/constants.go"
    constants.write_text(replaced(constants.read_text(), *TIMEOUT))
    print(STEPS["Provisioned True"], STEPS["Failed True"])


main()
