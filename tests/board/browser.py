#!/usr/bin/env python3
"""Uses the board in headless Chromium, over its debugging pipe.

Fails unless a gang is seen to fill up and be approved, the page can be used by keyboard and on a phone, it says
when it has no connection, axe finds no violation at three widths, a tenant's markup stays text, and nothing went
wrong in the console. Needs chromium, Python and npm, which brings axe.

With `follow` after the address there is no gang at first: once the page is open this says so, and whoever
runs it begins one, whose life is then seen from the first state to the last. `stand-by` and `leave` say so too
when the next board should follow.
"""

import base64
import fcntl
import hashlib
import io
import json
import os
import re
import select
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

LIMIT = 40.0
# A desk, a tablet, a phone.
SCREENS = {"desk": (1280, 860), "tablet": (800, 1000), "phone": (390, 844)}
AXE = "4.14.1"
AXE_HASH = "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745"
GROWING = "vision/job-pretrain-vit-4c1d9"
WAITING = "genomics/job-align-batch-7-b02aa"
# Not among the gangs of the first message.
LATE = "team/job-499"
REDRAW = "drawn = { gang: null, chart: null }; drawDetail()"
EVENTS = [{"urlPattern": "*/board/events"}]


def pipe():
    """A pipe whose descriptors are none of the first ten."""
    low = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low]
    for end in low:
        os.close(end)
    return high


def axe():
    """The script of axe-core, which npm brings; it is the one with this hash."""
    folder = Path(__file__).resolve().parents[2] / "target/board"
    packed = folder / f"axe-core-{AXE}.tgz"
    if not packed.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "pack", "--silent", f"axe-core@{AXE}", "--pack-destination", str(folder)],
                       check=True, stdout=subprocess.DEVNULL)
    content = packed.read_bytes()
    if hashlib.sha256(content).hexdigest() != AXE_HASH:
        raise SystemExit(f"{packed} is not the file that is named here by its hash")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return archive.extractfile("package/axe.min.js").read().decode()


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
        self.buffer, self.number, self.session, self.faults, self.held = b"", 0, None, [], []
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
        if method == "Fetch.requestPaused":
            self.held.append(parameters["requestId"])
        if method == "Runtime.exceptionThrown":
            self.faults.append(parameters["exceptionDetails"].get("exception", {}).get("description", str(parameters)))
        if method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.faults.append(str([a.get("value", a.get("description")) for a in parameters["args"]]))
        if method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.faults.append(parameters["entry"]["text"])
        return message

    def next_held(self):
        """The next request that Chromium holds back. It may have come with an earlier answer."""
        while not self.held:
            self.read()
        return self.held.pop()

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
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
        # What is typed, and the code that Chromium acts on.
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        code = {"Tab": 9, "Enter": 13, "Escape": 27}.get(key, 0)
        for kind in ("keyDown", "keyUp"):
            typed = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **typed)

    def tap(self, selector, then, what):
        """Clicks in the middle of an element, which has to be seen there, until `then` is true: the page moves meanwhile."""
        for _ in range(20):
            x, y, hit = self.value(f"""(() => {{
                const node = document.querySelector({json.dumps(selector)}), box = node.getBoundingClientRect();
                const x = box.x + box.width / 2, y = box.y + box.height / 2, hit = document.elementFromPoint(x, y);
                return [x, y, Boolean(hit && node.contains(hit))];
            }})()""")
            check(hit, f"{selector} can be reached on the screen, at {x} {y}")
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
            end = time.monotonic() + 2
            while time.monotonic() < end:
                if self.value(then):
                    return
        raise SystemExit(f"never seen after a click on {selector}: {what}")

    def screen(self, width, height, scheme):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def fits(self, what):
        wide = self.value("document.documentElement.scrollWidth - innerWidth")
        check(wide <= 0, f"{what} is not wider than the screen, by {wide}")

    def accessible(self, what):
        """Ends if axe finds a violation, in either color scheme."""
        if not self.value("'axe' in window"):
            self.value(axe() + ";0")
        for scheme in ("light", "dark"):
            self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            found = self.value("axe.run().then(({violations, passes}) => [passes.length, violations.map((rule) => "
                               "`${rule.id}: ${rule.help}\\n${rule.nodes.map((node) => node.html + ' ' + node.failureSummary).join('\\n')}`)])")
            check(found[0] > 15, f"axe checked the page, {found[0]} rules")
            check(not found[1], f"{what} in the {scheme} scheme has no violation\n" + "\n".join(found[1]))

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
            parts = {"follow": follow, "stand-by": stand_by, "leave": leave, "screens": screens, "connection": connection}
            parts[sys.argv[2]](browser, url) if sys.argv[2:] else walk(browser, url)
        finally:
            browser.close()


def follow(browser, url):
    browser.screen(1360, 860, "light")
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
    browser.screen(1360, 860, "light")
    # A name that cannot be read is no name.
    browser.call("Page.navigate", url=url + "#%")
    says = "document.querySelector('.nothing')?.textContent.includes('%s')"
    browser.until(says % "stands by", "that it stands by")
    print("open", flush=True)
    browser.until(says % "No gang yet", "that it acts, with no gang")
    check(not browser.faults, f"the console is silent: {browser.faults}")


def leave(browser, url):
    """The address leads to a gang that comes late, and the page says why it left only if it knows."""
    slow = lambda rate: browser.call("Network.emulateNetworkConditions", offline=False, latency=0,
                                     downloadThroughput=rate, uploadThroughput=-1)
    browser.screen(*SCREENS["desk"], "light")
    browser.call("Network.enable")
    # So slow that the page is drawn before the last gangs come.
    slow(100_000)
    browser.call("Page.navigate", url=f"{url}#{LATE}")
    total = "document.getElementById('total')?.textContent.startsWith('%s gangs')"
    browser.until(total % 250, "the first gangs")
    browser.until(total % 500, "all gangs")
    shown = browser.value("document.querySelector('#detail h2').textContent")
    check(shown == LATE.replace("/", " / "), f"the gang in the address is chosen, not {shown}")
    slow(-1)
    browser.value("document.querySelector('#gang summary').focus()")
    print("open", flush=True)
    says = "document.getElementById('gang').textContent === %s"
    browser.until(says % '"This gang is not on this replica\'s board any more."', "that its shard has moved")
    check(browser.value("document.activeElement.id") == "detail", "the focus stays in the detail")
    print("open", flush=True)
    browser.until(says % "'This gang is gone: its Workload was deleted.'", "that it was deleted")
    check(not browser.faults, f"the console is silent: {browser.faults}")


def walk(browser, url):
    row = f"document.getElementById('gang-{GROWING}')"
    browser.screen(1360, 860, "light")
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
    browser.screen(1360, 860, "dark")
    browser.shoot("board-dark.png")
    check(browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 25)", "it is dark")
    for part in ("chart", "ready"):
        browser.value(f"document.querySelector('#gang .{part} > summary').focus(); {REDRAW}")
        check(browser.value(f"document.activeElement.matches('#gang .{part} > summary')"), f"the focus stays on {part}")
    browser.until(f"{row}.querySelectorAll('.cell.Ready').length === 8", "all nodes ready")
    browser.until(f"{row}.closest('.group').querySelector('h2').textContent.startsWith('Approved')", "approval")
    lit = "document.querySelector('svg .lit text').textContent"
    browser.until(f"{lit} === 'Approved'", "Approved lit in the statechart")
    check(browser.value("document.activeElement.matches('.ready > summary')"), "the focus outlasts the gang's changes")
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
    browser.press("Enter")
    check(browser.value("document.activeElement.id") == "detail", "Enter leads from the list to the gang")
    browser.press("Escape")
    check(browser.value("document.activeElement.id") == "list", "Escape leads back")

    browser.value("document.getElementById('only-BackingOff').click()")
    browser.until("document.querySelectorAll('.gang').length === 1", "one state shown")
    browser.press("Home")
    browser.until(f"{lit} === 'BackingOff'", "BackingOff lit")
    browser.screen(1360, 860, "light")
    browser.value("document.getElementById('only-BackingOff').click()")
    browser.shoot("board-retry.png")
    browser.value("document.getElementById('search').value = 'no such gang'; "
                  "document.getElementById('search').dispatchEvent(new Event('input'))")
    browser.until("document.getElementById('nothing').textContent.startsWith('No gang matches')", "that none matches")
    browser.tap("#nothing button", "document.querySelectorAll('.gang').length > 10", "all gangs once more")
    check(not browser.faults, f"the console is silent: {browser.faults}")


def screens(browser, url):
    """On each screen the detail of a gang is where one looks, in its order, and axe finds nothing."""
    for name, (width, height) in SCREENS.items():
        browser.screen(width, height, "light")
        browser.call("Page.navigate", url="about:blank")
        browser.call("Page.navigate", url=url)
        browser.until("document.getElementById('link')?.textContent === 'live'", "that the page is live")
        browser.until("document.querySelectorAll('.gang').length > 10", "the gangs")
        browser.fits(f"the list on a {name}")
        browser.shoot(f"board-{name}-list.png")
        browser.accessible(f"the list on a {name}")
        browser.tap(f"[id='gang-{WAITING}']", "document.querySelector('#detail h2')?.textContent.includes('align-batch')",
                    "the gang in the detail")
        top = browser.value("document.querySelector('#detail h2').getBoundingClientRect().top")
        check(0 <= top < height / 3, f"the gang is at the top of a {name}, at {top}")
        words = browser.value("document.getElementById('gang').innerText")
        places = [words.find(word) for word in ("nodes ready", "Next", "Nodes", "History", "About", "Statechart")]
        check(-1 not in places and places == sorted(places), f"first what it waits for, then nodes, then history: {places}")
        check("393.29 USD an hour" in words, f"what it costs is shown, {words}")
        browser.fits(f"the detail on a {name}")
        browser.shoot(f"board-{name}.png")
        for summary in browser.value("[...document.querySelectorAll('summary')].map((node) => node.click())"):
            check(summary is None, "a part unfolds")
        browser.accessible(f"the detail on a {name}")
        browser.shoot(f"board-{name}-dark.png")
        if name == "phone":
            browser.value("document.querySelector('.scroll').focus({ preventScroll: true }); "
                          f"document.activeElement.scrollLeft = 40; {REDRAW}")
            place = browser.value("[document.activeElement.className, document.activeElement.scrollLeft]")
            check(place == ["scroll", 40], f"the place in the statechart is kept, {place}")
            check(browser.value("document.getElementById('list').offsetParent === null"), "the list makes room on a phone")
            browser.tap("#back", "document.getElementById('gang').offsetParent === null", "the list")
            browser.value("document.getElementById('list').focus()")
            browser.press("End")
            check(browser.value("document.getElementById('gang').offsetParent === null"), "arrow keys open nothing on a phone")
            browser.press("Enter")
            check(browser.value("document.activeElement.id") == "back", "Enter opens the gang")
            browser.value("history.back()")
            browser.until("document.getElementById('gang').offsetParent === null", "the browser's way back leads to the list")
        else:
            check(browser.value("document.getElementById('list').offsetParent !== null"), f"the list stays on a {name}")
    check(not browser.faults, f"the console is silent: {browser.faults}")


def connection(browser, url):
    """The page tells connecting, no answer, an answer without gangs and a lost connection apart."""
    says = "document.getElementById('nothing')?.textContent.startsWith('%s')"
    offline = lambda off: browser.call("Network.emulateNetworkConditions", offline=off, latency=0,
                                       downloadThroughput=-1, uploadThroughput=-1)
    browser.screen(*SCREENS["desk"], "light")
    browser.call("Network.enable")
    browser.call("Fetch.enable", patterns=EVENTS)
    browser.call("Page.navigate", url=url)
    browser.until(says % "Connecting", "that it connects")
    browser.shoot("board-connecting.png")
    browser.accessible("a page that connects")
    browser.call("Fetch.fulfillRequest", requestId=browser.next_held(), responseCode=503)
    browser.until(says % "No answer with gangs", "that it was refused")
    browser.call("Fetch.failRequest", requestId=browser.next_held(), errorReason="ConnectionRefused")
    browser.until(says % "The controller cannot be reached", "that nothing answers")
    browser.shoot("board-unreachable.png")
    browser.call("Fetch.disable")
    browser.until("document.getElementById('link').textContent === 'live'", "that the page is live")
    browser.until("document.querySelectorAll('.gang').length > 10", "the gangs")
    # A connection that is silent for too long is lost, and here no new one comes about.
    offline(True)
    silent = "tried = received -= 60000; beat(); "
    check(browser.value(f"{silent} connection") == "lost", "silence is noticed")
    check(browser.value(f"{silent} window.first = source; beat(); source === first"), "an attempt may take its time")
    sign = "source.dispatchEvent(new MessageEvent('chart', { data: JSON.stringify(chart) })); "
    check(browser.value(f"tried -= 60000; {sign} beat(); source === first"), "an attempt that brings something goes on")
    check(browser.value("tried -= 60000; beat(); source !== first"), "an attempt that brings nothing is given up")
    lost = "document.getElementById('lost')"
    browser.until(f"!{lost}.hidden && {lost}.textContent.startsWith('Connection lost')", "that the connection is lost")
    age = "document.querySelector('#detail [data-long]').textContent"
    before = browser.value(age)
    time.sleep(2)
    check(browser.value(age) == before, "times stand still without a connection")
    check(browser.value("document.querySelectorAll('.gang').length") > 10, "the last gangs stay")
    browser.shoot("board-lost.png")
    browser.accessible("a page that lost its connection")
    offline(False)
    browser.until(f"{lost}.hidden", "that the connection is back")
    # Whoever answers without events is asked again after 5 seconds, and no more often after a silence.
    browser.call("Fetch.enable", patterns=EVENTS)
    refuse = lambda: browser.call("Fetch.fulfillRequest", requestId=browser.next_held(), responseCode=503)
    for _ in range(2):
        browser.value(silent)
        refuse()
        browser.until("connection === 'refused'", "that it was refused")
    refuse()
    refused = time.monotonic()
    refuse()
    waited = time.monotonic() - refused
    check(waited > 3, f"there is one attempt at a time, not one after {waited} seconds")


main()
