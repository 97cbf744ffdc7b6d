#include "cli/plot/page_assets.h"

namespace aft::cli {

const char* const kPageStyle = R"css(
:root { color-scheme: light dark; --ink: #1d1d1f; --soft: #5a5a60;
  --paper: #fff; --line: #d9d9de; --link: #0059a8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8ea; --soft: #a3a3aa; --paper: #17181b; --line: #37383d;
    --link: #7fb8f0; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1460px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 4px;
  overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 0 0 10px; overflow-wrap: anywhere; }
a { color: var(--link); }
.subtitle { color: var(--soft); margin: 0 0 14px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 18px;
  margin: 16px 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
nav ol { margin: 16px 0 0; padding-left: 24px; columns: 16rem auto; }
nav li { break-inside: avoid; overflow-wrap: anywhere; }
section { margin-top: 36px; padding-top: 22px;
  border-top: 1px solid var(--line); }
figure { margin: 0; }
figcaption { margin-top: 10px; max-width: 76ch; color: var(--soft);
  overflow-wrap: anywhere; }
figcaption b { color: var(--ink); }
.plate { position: relative; display: inline-block; max-width: 100%;
  background: #fff; border-radius: 4px; vertical-align: top; }
.plate img, .plate svg { display: block; max-width: 100%; height: auto; }
.plate:focus-visible { outline: 2px solid var(--link); outline-offset: 3px; }
.live { cursor: crosshair; touch-action: manipulation; }
.mark { position: absolute; pointer-events: none; outline: 2px solid #fff;
  box-shadow: 0 0 0 3px #000; }
#tip { position: fixed; z-index: 1; top: 0; left: 0; max-width: 340px;
  padding: 6px 10px; border-radius: 5px; background: #1d1d1f; color: #fff;
  box-shadow: 0 0 0 1px #fff6, 0 2px 8px #0006; font-size: 14px;
  line-height: 1.4; pointer-events: none; overflow-wrap: anywhere; }
#tip b { display: block; }
[hidden] { display: none !important; }
@media print {
  :root { --ink: #000; --soft: #333; --paper: #fff; --line: #bbb; }
  main { max-width: none; padding: 0; }
  nav, #tip, .mark { display: none !important; }
  section { break-inside: avoid; }
}
)css";

// A plate is an interactive figure: `at` finds the item at a point, `step` the
// one that an arrow key selects, and `show` marks an item and returns its
// texts.
const char* const kPageScript = R"js(
"use strict";
(() => {
  const tip = document.getElementById("tip");

  function say(name, lines, x, y) {
    const title = document.createElement("b");
    title.textContent = name;
    tip.replaceChildren(title);
    lines.forEach((line, i) => {
      if (i) tip.append(document.createElement("br"));
      tip.append(line);
    });
    tip.hidden = false;
    const right = innerWidth - tip.offsetWidth - 6;
    tip.style.left = Math.max(6, Math.min(x + 16, right)) + "px";
    const below = y + 18;
    const fits = below + tip.offsetHeight < innerHeight;
    const top = fits ? below : y - tip.offsetHeight - 14;
    tip.style.top = Math.max(6, top) + "px";
  }

  // `count` significant digits, but none below the quantisation step.
  function digits(x, count, step) {
    if (Number.isNaN(x)) return "none";
    if (!Number.isFinite(x)) return x > 0 ? "inf" : "-inf";
    if (step > 0) {
      const decimals = -Math.ceil(Math.log10(step));
      x = decimals > 0 ? Number(x.toFixed(Math.min(decimals, 100)))
                       : Math.round(x / 10 ** -decimals) * 10 ** -decimals;
    }
    return String(Number(x.toPrecision(count)));
  }

  function reader(map) {
    const bytes = Uint8Array.from(atob(map.values), (c) => c.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    if (map.bits === 32) return (i) => view.getFloat32(4 * i, true);
    const [low, high] = map.range;
    map.step = (high - low) / 65532;
    const special = { 65533: -Infinity, 65534: Infinity, 65535: NaN };
    return (i) => {
      const code = view.getUint16(2 * i, true);
      return code in special ? special[code] : low + code * map.step;
    };
  }

  function value(map, i) {
    if (!map.read) {
      map.read = reader(map);
      let low = Infinity, high = -Infinity;
      for (let j = 0; j < map.cells[0] * map.cells[1]; ++j) {
        const x = map.read(j);
        if (!Number.isFinite(x)) continue;
        low = Math.min(low, x), high = Math.max(high, x);
      }
      // Four, and more if all values share their first digits.
      const same = Math.log10(Math.max(-low, high) / (high - low));
      map.digits = 4 + (same > 0 ? Math.min(Math.floor(same), 3) : 0);
    }
    return digits(map.read(i), map.digits, map.step);
  }

  function maps(plate, data) {
    const mark = document.createElement("div");
    mark.className = "mark";
    mark.hidden = true;
    plate.append(mark);
    const [height, width] = data.size;
    const span = (first, index, block, count) => {
      const from = index * block, to = Math.min(from + block, count) - 1;
      return to > from ? `${first + from} to ${first + to}` : `${first + from}`;
    };
    const cell = (i, row, column) => ({ i, row, column });
    return {
      at(x, y) {
        x *= width, y *= height;
        for (let i = 0; i < data.maps.length; ++i) {
          const m = data.maps[i];
          if (!m) continue;
          const [top, left, h, w] = m.place;
          if (x < left || x >= left + w || y < top || y >= top + h) continue;
          return cell(i, Math.floor(((y - top) / h) * m.cells[0]),
                      Math.floor(((x - left) / w) * m.cells[1]));
        }
        return null;
      },
      step(now, dx, dy) {
        if (!now) return cell(data.maps.findIndex((m) => m), 0, 0);
        const m = data.maps[now.i];
        const row = now.row + dy, column = now.column + dx;
        if (row >= 0 && row < m.cells[0] && column >= 0 && column < m.cells[1])
          return cell(now.i, row, column);
        // Beyond the edge: the adjacent map.
        const across = (now.i % data.columns) + dx;
        const i = now.i + dx + dy * data.columns;
        const next = data.maps[i];
        if (across < 0 || across >= data.columns || !next) return now;
        const wrap = (at, by, old, size) =>
          by > 0 ? 0 : by < 0 ? size - 1 : Math.min(old, size - 1);
        return cell(i, wrap(row, dy, now.row, next.cells[0]),
                    wrap(column, dx, now.column, next.cells[1]));
      },
      show(now) {
        mark.hidden = !now;
        if (!now) return null;
        const m = data.maps[now.i];
        const [top, left, h, w] = m.place, [rows, columns] = m.cells;
        const box = { top: (top + (now.row * h) / rows) / height,
                      left: (left + (now.column * w) / columns) / width,
                      height: h / rows / height, width: w / columns / width };
        for (const key in box) mark.style[key] = 100 * box[key] + "%";
        const text = value(m, now.row * columns + now.column);
        return {
          name: m.name,
          lines: [
            `${data.y} ${span(m.first[0], now.row, m.block, m.whole[0])}, ` +
              `${data.x} ${span(m.first[1], now.column, m.block, m.whole[1])}`,
            `${data.quantity || "value"}: ${text}`,
          ],
          x: box.left + box.width / 2, y: box.top + box.height / 2,
        };
      },
    };
  }

  function chart(plate, data) {
    const svg = plate.querySelector("svg");
    const box = svg.viewBox.baseVal;
    const mark = document.createElementNS(svg.namespaceURI, "circle");
    const look = { r: 6, fill: "none", stroke: "#000", "stroke-width": 2 };
    for (const key in look) mark.setAttribute(key, look[key]);
    mark.style.display = "none";
    svg.append(mark);
    const reach = 40;
    return {
      at(x, y) {
        x = box.x + x * box.width, y = box.y + y * box.height;
        let best = null, least = reach;
        data.points.forEach((p, i) => {
          const far = Math.hypot(p[2] - x, p[3] - y);
          if (far < least) least = far, best = i;
        });
        return best;
      },
      step(now, dx, dy) {
        if (now === null) return data.points.length ? 0 : null;
        return Math.max(0, Math.min(now + dx + dy, data.points.length - 1));
      },
      show(now) {
        mark.style.display = now === null ? "none" : "";
        if (now === null) return null;
        const [panel, series, x, y, vx, vy] = data.points[now];
        const about = data.panels[panel];
        mark.setAttribute("cx", x);
        mark.setAttribute("cy", y);
        mark.setAttribute("stroke", data.colours[series]);
        return {
          name: about.series[series],
          lines: [`${about.x}: ${String(Number(vx.toPrecision(6)))}`,
                  `${about.y}: ${digits(vy, 4, 0)}`],
          x: (x - box.x) / box.width, y: (y - box.y) / box.height,
        };
      },
    };
  }

  const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0],
                   ArrowUp: [0, -1], ArrowDown: [0, 1] };

  let owner = null;  // the plate that the tooltip belongs to
  for (const plate of document.querySelectorAll(".live")) {
    const data = JSON.parse(plate.querySelector("script").textContent);
    const part = plate.querySelector("img") ? maps(plate, data)
                                            : chart(plate, data);
    const area = plate.querySelector("img, svg");
    let now = null;
    const choose = (next, x, y) => {
      now = next;
      const shown = part.show(now);
      if (!shown) {
        if (owner === plate) tip.hidden = true;
        return;
      }
      owner = plate;
      const r = area.getBoundingClientRect();
      say(shown.name, shown.lines, x ?? r.left + shown.x * r.width,
          y ?? r.top + shown.y * r.height);
    };
    const point = (e) => {
      const r = area.getBoundingClientRect();
      choose(part.at((e.clientX - r.left) / r.width,
                     (e.clientY - r.top) / r.height), e.clientX, e.clientY);
    };
    plate.addEventListener("pointermove", point);
    plate.addEventListener("pointerdown", point);
    plate.addEventListener("pointerleave", (e) => {
      if (e.pointerType === "mouse") choose(null);
    });
    plate.addEventListener("blur", () => choose(null));
    plate.addEventListener("keydown", (e) => {
      if (e.key === "Escape") choose(null);
      if (!(e.key in arrows)) return;
      e.preventDefault();
      choose(part.step(now, ...arrows[e.key]));
    });
  }
})();
)js";

}  // namespace aft::cli
