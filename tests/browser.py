"""A page in headless Chromium, by the protocol of its developer tools."""

import asyncio
import base64
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0")


class Page:
    """A page: the addresses that it has asked for, and errors of its scripts."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0
        self.addresses: list[str] = []
        self.errors: list[str] = []

    async def call(self, method: str, **given: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": given})
        while True:
            told = await self._socket.receive_json()
            if told.get("id") == self._number:
                return told["result"]
            if told["method"] == "Network.requestWillBeSent":
                self.addresses.append(told["params"]["request"]["url"])
            if told["method"] == "Runtime.exceptionThrown":
                self.errors.append(str(told["params"]))

    async def value(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript."""
        result = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return result["result"].get("value")

    async def until(self, expression: str, seconds: float = 60) -> None:
        """Wait until an expression of JavaScript is true."""
        async with asyncio.timeout(seconds):
            while not await self.value(expression):
                await asyncio.sleep(0.1)

    async def open(self, address: str, width: int, height: int = 900) -> None:
        """Open an address in a window of so many pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        await self.call("Page.navigate", url=address)

    async def press(self, text: str) -> None:
        """Click the last visible button of this text: Gradio has tabs twice, first to measure them."""
        found = (
            f"[...document.querySelectorAll('button')].findLast(one => one.offsetParent && one.innerText === '{text}')"
        )
        await self.until(f"!!{found}")
        await self.value(f"{found}.click()")

    async def screenshot(self, file: Path) -> None:
        """Write a picture of what is seen."""
        taken = await self.call("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(taken["data"]))


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Page]:
    """Start Chromium with its files in a folder, and end it."""
    command = [str(CHROMIUM), *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ports = folder / "DevToolsActivePort"
    try:
        async with asyncio.timeout(60), aiohttp.ClientSession() as session:
            while not (ports.is_file() and re.match(r"\d+\n", ports.read_text())):
                await asyncio.sleep(0.1)
            port = int(ports.read_text().split()[0])
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                address = next(one for one in await answer.json() if one["type"] == "page")["webSocketDebuggerUrl"]
        async with aiohttp.ClientSession() as session, session.ws_connect(address, max_msg_size=0) as socket:
            page = Page(socket)
            for domain in ("Page", "Runtime", "Network"):
                await page.call(f"{domain}.enable")
            yield page
    finally:
        process.terminate()
        process.wait()
