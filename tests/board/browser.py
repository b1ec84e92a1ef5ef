#!/usr/bin/env python3
"""Looks at the board in headless Chromium, over its debugging pipe.

Fails unless a gang is seen to fill up and be approved, the page can be used by keyboard, a tenant's
markup stays text, and nothing went wrong in the console. Needs nothing but chromium and Python.

With `follow` after the address there is no gang at first: once the page is open this says so, and whoever
runs it begins one, whose life is then seen from the first state to the last.
"""

import base64
import fcntl
import json
import os
import re
import select
import subprocess
import sys
import tempfile
import time

LIMIT = 40.0
GROWING = "vision/job-pretrain-vit-4c1d9"


def pipe():
    """A pipe whose descriptors are none of the first ten."""
    low = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low]
    for end in low:
        os.close(end)
    return high


class Browser:
    """One page of one browser, which ends with it."""

    def __init__(self, folder):
        # Chromium reads commands from descriptor 3 and answers on 4; no pipe may lie there before.
        commands, self.commands = pipe()
        self.answers, answers = pipe()
        arguments = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--hide-scrollbars", "--force-color-profile=srgb", "--remote-debugging-pipe",
                     f"--user-data-dir={folder}", "about:blank"]
        shell = f'exec "$@" 3<&{commands} 4>&{answers}'
        self.process = subprocess.Popen(["bash", "-c", shell, "sh", *arguments], pass_fds=(commands, answers),
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)
        self.buffer, self.number, self.session, self.faults = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise SystemExit(f"{method}: {answer['error']}")
                return answer["result"]

    def read(self):
        """The next message; complaints of the page are kept."""
        while b"\0" not in self.buffer:
            if not select.select([self.answers], [], [], LIMIT)[0]:
                raise SystemExit("the browser does not answer")
            part = os.read(self.answers, 1 << 20)
            if not part:
                raise SystemExit("the browser has ended")
            self.buffer += part
        text, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(text)
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.faults.append(parameters["exceptionDetails"].get("exception", {}).get("description", str(parameters)))
        if method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.faults.append(str([a.get("value", a.get("description")) for a in parameters["args"]]))
        if method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.faults.append(parameters["entry"]["text"])
        return message

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise SystemExit(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, expression, what):
        """Waits until an expression is true; what the page says meanwhile is read too."""
        end = time.monotonic() + LIMIT
        while not self.value(expression):
            if time.monotonic() > end:
                raise SystemExit(f"never seen: {what}\n{self.value('document.body.innerText')}\n{self.faults}")
            select.select([self.answers], [], [], 0.1)

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if len(key) == 1 and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **text)

    def look(self, width, height, scheme):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def shoot(self, name):
        folder = os.environ.get("SETU_SCREENSHOTS")
        if folder:
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, name), "wb") as file:
                file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=LIMIT)


def check(holds, what):
    if not holds:
        raise SystemExit(f"not so: {what}")


def main():
    url = sys.argv[1]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(folder)
        try:
            if sys.argv[2:] == ["follow"]:
                follow(browser, url)
            elif sys.argv[2:] == ["stand-by"]:
                stand_by(browser, url)
            else:
                walk(browser, url)
        finally:
            browser.close()


def follow(browser, url):
    browser.look(1360, 860, "light")
    browser.call("Page.navigate", url=url)
    browser.until("document.getElementById('link')?.textContent === 'live'", "that the page is live")
    check(browser.value("document.querySelectorAll('.gang').length") == 0, "there is no gang yet")
    # What is shown may change faster than it is asked for from here.
    browser.value("""
        window.seen = [];
        new MutationObserver(() => {
            const row = document.querySelector('.gang');
            if (!row) return;
            const shown = [row.closest('.group').querySelector('h2').textContent.split(/[^A-Za-z]/)[0],
                           row.querySelectorAll('.cell.Ready').length].join(' ');
            if (window.seen.at(-1) !== shown) window.seen.push(shown);
        }).observe(document.body, {subtree: true, childList: true, attributes: true, characterData: true});
    """)
    print("open", flush=True)
    browser.until("window.seen.includes('Approved 8')", "the gang approved with all its nodes")
    seen = browser.value("window.seen")
    states = list(dict.fromkeys(shown.split()[0] for shown in seen))
    check("WaitingReady" in states and states[-1] == "Approved", f"it waited before it was approved, {seen}")
    check(any(0 < int(shown.split()[1]) < 8 for shown in seen), f"its slots filled one by one, {seen}")
    browser.value("document.querySelector('.gang').click()")
    browser.until("document.querySelector('svg .lit text')?.textContent === 'Approved'", "Approved lit in the statechart")
    stays = browser.value("[...document.querySelectorAll('#timeline .line > span:first-child')].map(e => e.textContent).join(' ')")
    check("Provisioning WaitingReady Approved slot 0" in stays, f"the timeline has the states, {stays}")
    check(not browser.faults, f"the console is silent: {browser.faults}")


def stand_by(browser, url):
    browser.look(1360, 860, "light")
    # A name that cannot be read is no name.
    browser.call("Page.navigate", url=url + "#%")
    says = "document.querySelector('.nothing')?.textContent.includes('%s')"
    browser.until(says % "stands by", "that it stands by")
    print("open", flush=True)
    browser.until(says % "No gang yet", "that it acts, with no gang")
    check(not browser.faults, f"the console is silent: {browser.faults}")


def walk(browser, url):
    row = f"document.getElementById('gang-{GROWING}')"
    browser.look(1360, 860, "light")
    browser.call("Page.navigate", url=f"{url}#{GROWING}")
    browser.until(f"!!{row}", "the gang in the list")
    browser.until("document.getElementById('link').textContent === 'live'", "that the page is live")
    browser.until("document.getElementById('capacity').textContent.includes('gpu-h100-spot')", "what ran out")
    check(browser.value(f"{row}.getAttribute('aria-selected')") == "true", "the gang in the address is chosen")
    before = browser.value(f"{row}.querySelector('.figure').textContent")
    check(before.endswith("/8") and before != "8/8", f"the gang is on its way, {before}")
    total = browser.value("document.getElementById('total').textContent")
    check(re.search(r", \d+\.\d\d USD an hour$", total), f"what all gangs cost is shown as it was sent, {total}")
    facts = browser.value("document.querySelector('.facts').textContent")
    check("786.57 USD an hour" in facts, f"what the gang costs is shown as it was sent, {facts}")
    browser.until(f"{row}.querySelectorAll('.cell.Ready').length >= 3", "three nodes ready")
    browser.shoot("board-light.png")
    browser.look(1360, 860, "dark")
    browser.shoot("board-dark.png")
    check(browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 25)", "it is dark")
    browser.until(f"{row}.querySelectorAll('.cell.Ready').length === 8", "all nodes ready")
    browser.until(f"{row}.closest('.group').querySelector('h2').textContent.startsWith('Approved')", "approval")
    lit = "document.querySelector('svg .lit text').textContent"
    browser.until(f"{lit} === 'Approved'", "Approved lit in the statechart")
    check(browser.value("document.querySelectorAll('svg path.edge').length") > 20, "the chart has its edges")
    stays = browser.value("[...document.querySelectorAll('#timeline .line > span:first-child')].map(e => e.textContent).join(' ')")
    check("Provisioning WaitingReady Approved slot 0" in stays, f"the timeline has the states, {stays}")

    # By keyboard: find, choose, go down.
    browser.press("/")
    for letter in "hostile":
        browser.press(letter)
    browser.until("document.querySelectorAll('.gang').length === 1", "one gang found")
    browser.press("Enter")
    browser.until("document.querySelector('#detail h2').textContent.includes('job-hostile')", "the found gang chosen")
    check("<img src=x" in browser.value("document.querySelector('.say').textContent"), "markup is shown as text")
    check(browser.value("document.querySelectorAll('img').length") == 0, "no image came to be")
    check(browser.value("document.title") == "Setu board", "no foreign script ran")
    browser.press("/")
    browser.press("Escape")
    browser.until("document.querySelectorAll('.gang').length > 10", "all gangs again")
    browser.value("document.getElementById('list').focus()")
    browser.press("Home")
    first = browser.value("document.getElementById('list').getAttribute('aria-activedescendant')")
    browser.press("ArrowDown")
    second = browser.value("document.getElementById('list').getAttribute('aria-activedescendant')")
    check(first and second and first != second, "arrow keys choose gangs")
    nameless = "[...document.querySelectorAll('button, input, [role=option], [role=listbox], [role=img], section')]" \
               ".filter(e => !(e.getAttribute('aria-label') || e.textContent.trim())).length"
    check(browser.value(nameless) == 0, "everything that can be used has a name")

    browser.value("document.getElementById('only-BackingOff').click()")
    browser.until("document.querySelectorAll('.gang').length === 1", "one state shown")
    browser.press("Home")
    browser.until(f"{lit} === 'BackingOff'", "BackingOff lit")
    browser.look(1360, 860, "light")
    browser.value("document.getElementById('only-BackingOff').click()")
    browser.shoot("board-retry.png")
    browser.look(420, 900, "light")
    wide = browser.value("document.documentElement.scrollWidth")
    check(wide <= 420, f"it fits a narrow screen, {wide}")
    check(not browser.faults, f"the console is silent: {browser.faults}")


main()
