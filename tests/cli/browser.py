"""Drives a real browser (Debian's chromium, headless): opens a page from a file, moves
the mouse, and reports errors and requests of the page. Without a browser, tests are
skipped with a message; if the environment has CI, they fail instead."""

import json
import os
import shutil
import tempfile
import unittest
from pathlib import Path

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.actions.action_builder import ActionBuilder
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait
except ImportError:
    webdriver = None

SECONDS = 120  # generous, since other tests may use all cores
# Scrolls the cell of a map into view and returns its position in the window.
PLACE = """
const plate = document.querySelector(`#${arguments[0]} .live`);
const data = JSON.parse(plate.querySelector("script").textContent);
const map = data.maps[arguments[1]], image = plate.querySelector("img");
const [top, left, height, width] = map.place, [rows, columns] = map.cells;
const y = (top + (height * (arguments[2] + 0.5)) / rows) / data.size[0];
const x = (left + (width * (arguments[3] + 0.5)) / columns) / data.size[1];
let box = image.getBoundingClientRect();
scrollBy(0, box.top + y * box.height - innerHeight / 2);
box = image.getBoundingClientRect();
return [box.left + x * box.width, box.top + y * box.height];
"""
# The same for a point of a chart.
POINT = """
const plate = document.querySelector(`#${arguments[0]} .live`);
const data = JSON.parse(plate.querySelector("script").textContent);
const svg = plate.querySelector("svg"), view = svg.viewBox.baseVal;
const [, , px, py] = data.points[arguments[1]];
const x = (px - view.x) / view.width, y = (py - view.y) / view.height;
let box = svg.getBoundingClientRect();
scrollBy(0, box.top + y * box.height - innerHeight / 2);
box = svg.getBoundingClientRect();
return [box.left + x * box.width, box.top + y * box.height];
"""


class Browser:
    """with Browser() as browser: browser.open(path); ..."""

    def __init__(self, width=1300, height=900):
        program, driver = shutil.which("chromium"), shutil.which("chromedriver")
        for name, there in (
            ("python3-selenium", webdriver), ("chromium", program),
            ("chromium-driver", driver),
        ):  # fmt: skip
            if not there:
                why = f"needs a browser: {name} is not installed"
                raise (RuntimeError if os.environ.get("CI") else unittest.SkipTest)(why)
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for word in (
            "headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu",
            "no-first-run", "disable-background-networking", "disable-extensions",
            "force-device-scale-factor=1", f"window-size={width},{height}",
            f"user-data-dir={self.profile.name}",
        ):  # fmt: skip
            options.add_argument("--" + word)
        options.set_capability(
            "goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"}
        )
        try:
            self.driver = webdriver.Chrome(service=Service(driver), options=options)
        except BaseException:
            self.profile.cleanup()
            raise
        self.driver.set_page_load_timeout(SECONDS)
        self.driver.set_script_timeout(SECONDS)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.driver.quit()
        self.profile.cleanup()

    def open(self, path):
        self.address = Path(path).resolve().as_uri()
        self.driver.get_log("browser"), self.driver.get_log("performance")
        self.driver.get(self.address)
        ready = (
            "return document.readyState === 'complete' && "
            "Array.from(document.images).every((image) => image.complete)"
        )
        WebDriverWait(self.driver, SECONDS).until(lambda _: self.run(ready))

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def sections(self):
        """The names of the figures, in order."""
        return [each.get_attribute("id") for each in
                self.driver.find_elements(By.TAG_NAME, "section")]  # fmt: skip

    def images(self):
        """(figure, width, height in pixels) of each image; 0 x 0: could not be decoded."""
        return [tuple(each) for each in self.run(
            "return Array.from(document.images).map((image) => "
            "[image.closest('section').id, image.naturalWidth, image.naturalHeight])"
        )]  # fmt: skip

    def move(self, x, y):
        """Moves the mouse to a position in the window."""
        actions = ActionBuilder(self.driver, duration=0)
        actions.pointer_action.move_to_location(int(x), int(y))
        actions.perform()

    def tip(self):
        """The lines of the tooltip."""
        element = self.driver.find_element(By.ID, "tip")
        return element.text.splitlines() if element.is_displayed() else []

    def hover(self, name, number, row, column):
        """The tooltip of a cell of a map."""
        self.move(*self.run(PLACE, name, number, row, column))
        return self.tip()

    def hover_point(self, name, number):
        """The tooltip of a point of a chart."""
        self.move(*self.run(POINT, name, number))
        return self.tip()

    def press(self, name, *keys):
        """The tooltip after pressing keys (RIGHT, ESCAPE) with a figure in focus."""
        self.move(2, 2)  # out of the way
        plate = self.driver.find_element(By.CSS_SELECTOR, f"#{name} .live")
        plate.send_keys(*(getattr(Keys, key) for key in keys))
        return self.tip()

    def marked(self, name):
        """The marker of the selected cell: left, top, width, height in the window."""
        return self.run(
            "const r = document.querySelector(`#${arguments[0]} .mark`)"
            ".getBoundingClientRect(); return [r.left, r.top, r.width, r.height]",
            name)  # fmt: skip

    def errors(self):
        """The errors and warnings of the page since it was opened."""
        return [each["message"] for each in self.driver.get_log("browser")
                if each["level"] not in ("INFO", "DEBUG")]  # fmt: skip

    def requests(self):
        """The URLs that the page requested since it was opened, except its own."""
        events = (json.loads(each["message"])["message"]
                  for each in self.driver.get_log("performance"))  # fmt: skip
        asked = [each["params"]["request"]["url"] for each in events
                 if each["method"] == "Network.requestWillBeSent"]  # fmt: skip
        own = (self.address, "data:", "chrome://")  # the last one: an empty tab
        return [url for url in asked if not url.startswith(own)]
