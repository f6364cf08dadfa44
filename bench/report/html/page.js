"use strict";
// Reading values with mouse or arrow keys, data as table, CSV and JSON, and the timeline of holders. Needs nothing else.
(() => {
  const DATA = JSON.parse(document.getElementById("data").textContent);
  const NS = "http://www.w3.org/2000/svg";
  const make = (name, attributes, parent, text) => {
    const element = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  };
  const html = (name, parent, text, attributes = {}) => {
    const element = Object.assign(document.createElement(name), attributes);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  };

  // -- figures as text: the same rules as bench/report/figures.py --------------------------------------------------
  const grouped = (value, digits) => value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const count = (value) => grouped(value, Number.isInteger(value) || value >= 100 ? 0 : 1);
  const latency = (seconds) => {
    if (Math.abs(seconds) < 0.0001) return `${grouped(seconds * 1e6, 0)} µs`;
    if (Math.abs(seconds) >= 1) return `${seconds.toFixed(2)} s`;
    const ms = seconds * 1000;
    return `${grouped(ms, ms < 9.995 ? 2 : ms < 99.95 ? 1 : 0)} ms`;
  };
  const shown = (value, unit) => {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number") return String(value);
    if (unit === "s") return latency(value);
    if (unit === "ratio") return `${(value * 100).toFixed(1)} %`;
    if (unit === "per_s") return `${count(value)}/s`;
    if (unit === "us") return `${count(value)} µs`;
    return unit === "text" ? String(Number(value.toFixed(4))) : count(value);
  };

  // -- reading a picture -----------------------------------------------------------------------------------------
  function readable(figure, data) {
    const svg = figure.querySelector(".picture svg");
    if (!svg || !data.cursor.length) return;
    const readout = figure.querySelector(".readout");
    const box = svg.viewBox.baseVal;
    let line = null;
    let row = -1;
    const show = (index) => {
      row = Math.max(0, Math.min(data.cursor.length - 1, index));
      if (!line) line = make("path", { class: "cursor" }, svg);
      line.setAttribute("d", `M${data.cursor[row]} 8V${box.height - 22}`);
      readout.textContent = data.columns.map((c, i) => `${c.label} ${shown(data.rows[row][i], c.unit)}`).join(" · ");
    };
    const hide = () => {
      if (line) line.remove();
      line = null;
      readout.textContent = "";
    };
    svg.addEventListener("pointermove", (event) => {
      const area = svg.getBoundingClientRect();
      const x = ((event.clientX - area.left) / area.width) * box.width;
      let best = 0;
      data.cursor.forEach((at, index) => { if (Math.abs(at - x) < Math.abs(data.cursor[best] - x)) best = index; });
      show(best);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 };
      if (event.key in steps) { show(row + steps[event.key]); event.preventDefault(); }
      if (event.key === "Escape") hide();
    });
  }

  // -- its data --------------------------------------------------------------------------------------------------
  const csvCell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const asCsv = (data) => [data.columns.map((c) => c.name), ...data.rows].map((row) => row.map(csvCell).join(",")).join("\n") + "\n";
  const asJson = (data) => JSON.stringify(data.rows.map((row) => Object.fromEntries(data.columns.map((c, i) => [c.name, row[i]]))), null, 1);
  function save(name, kind, data) {
    const text = kind === "csv" ? asCsv(data) : asJson(data);
    const url = URL.createObjectURL(new Blob([text], { type: kind === "csv" ? "text/csv" : "application/json" }));
    html("a", null, "", { href: url, download: `${name}.${kind}` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }
  function dataOf(figure, name, data) {
    const details = figure.querySelector("details.data");
    details.querySelectorAll("button").forEach((button) => button.addEventListener("click", () => save(name, button.dataset.save, data)));
    details.addEventListener("toggle", () => {
      const place = details.querySelector(".rows");
      if (!details.open || place.firstChild) return;
      place.tabIndex = 0;
      const table = html("table", place);
      const head = html("tr", html("thead", table));
      data.columns.forEach((c) => html("th", head, c.name, { scope: "col" }));
      const body = html("tbody", table);
      data.rows.forEach((row) => {
        const line = html("tr", body);
        row.forEach((cell) => html("td", line, cell === null ? "–" : String(cell)));
      });
    });
  }

  // -- who held what ---------------------------------------------------------------------------------------------
  const LEFT = 96, RIGHT = 12, STRIP = 13, LANE = 46, BAR = 12, OVERVIEW_TOP = 16;
  const KEYS = [["lease", "lease"], ["lease bad", "lease that overlaps another (✖)"], ["over", "work past the validity"], ["unknown", "leases not kept"], ["fault", "a fault"],
    ["held", "above: held"], ["overlap", "above: two at once"], ["mark", "above: a finding"], ["view", "above: what is shown below"]];
  const SHAPES = { over: "M3 3h20v4h-20Z", overlap: "M13 0v10", mark: "M9 0h8l-4 9Z" };
  class Holders {
    constructor(figure, drawn) {
      this.drawn = drawn;
      this.place = figure.querySelector(".holders");
      this.readout = figure.querySelector(".readout");
      this.place.replaceChildren();
      this.width = Math.min(Math.max(this.place.clientWidth, 320), 1100);
      this.tools();
      this.keys = html("ul", this.place, undefined, { className: "keys" });
      this.overview = OVERVIEW_TOP + drawn.lanes.length * STRIP;
      this.top = this.overview + 44;
      this.height = this.top + drawn.lanes.length * LANE + 40;
      this.svg = make("svg", { viewBox: `0 0 ${this.width} ${this.height}`, role: "group", tabindex: "0", "aria-label": "Holders of each resource over time. Arrow keys move, plus and minus zoom, 0 shows the whole run." }, this.place);
      this.svg.addEventListener("keydown", (event) => this.key(event));
      this.svg.addEventListener("dblclick", () => this.go(drawn.start_s, drawn.end_s));
      this.drag();
      this.opens();
      document.querySelectorAll(`a[href="#${figure.id}"]`).forEach((link) => link.addEventListener("click", () => this.go(...this.around(drawn.opens))));
      addEventListener("hashchange", () => this.linked());
      this.linked();
    }
    // A view has an address: #at=<from>,<to> in seconds of the run.
    linked() {
      const [, from, to] = location.hash.match(/^#at=(-?[\d.]+),(-?[\d.]+)$/) || [];
      if (!(Number(from) < Number(to))) return;
      this.go(Number(from), Number(to));
      this.place.scrollIntoView();
    }
    opens() { this.show(...this.around(this.drawn.opens)); }
    go(from, to) {
      this.show(from, to);
      history.replaceState(null, "", `#at=${this.from.toFixed(6)},${this.to.toFixed(6)}`);
    }
    around([from, to]) {
      const margin = Math.max((to - from) * 0.4, 0.002);
      return [from - margin, to + margin];
    }
    tools() {
      const bar = html("div", this.place, undefined, { className: "tools" });
      const button = (text, act) => html("button", bar, text, { type: "button" }).addEventListener("click", act);
      button("Whole run", () => this.go(this.drawn.start_s, this.drawn.end_s));
      button("Zoom in", () => this.zoom(0.5));
      button("Zoom out", () => this.zoom(2));
      button("◀ Earlier", () => this.pan(-0.5));
      button("Later ▶", () => this.pan(0.5));
      this.drawn.marks.forEach((mark, index) => button(`${index + 1}. ${mark.text}`, () => this.go(...this.around(mark.span_s))));
    }
    show(from, to) {
      const { start_s: low, end_s: high } = this.drawn;
      const width = Math.min(Math.max(to - from, 1e-5), high - low);
      this.from = Math.min(Math.max(from, low), high - width);
      this.to = this.from + width;
      this.draw();
    }
    zoom(factor) {
      const middle = (this.from + this.to) / 2, half = ((this.to - this.from) / 2) * factor;
      this.go(middle - half, middle + half);
    }
    pan(share) { const by = (this.to - this.from) * share; this.go(this.from + by, this.to + by); }
    key(event) {
      const acts = { ArrowLeft: () => this.pan(-0.25), ArrowRight: () => this.pan(0.25), "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.go(this.drawn.start_s, this.drawn.end_s) };
      if (acts[event.key]) { acts[event.key](); event.preventDefault(); }
    }
    drag() {
      let begun = null, mark = null, whole = false;
      const at = (event) => {
        const area = this.svg.getBoundingClientRect();
        return [((event.clientX - area.left) / area.width) * this.width, ((event.clientY - area.top) / area.height) * this.height];
      };
      this.svg.addEventListener("pointerdown", (event) => { const [x, y] = at(event); begun = x; whole = y < this.overview + 4; });
      this.svg.addEventListener("pointermove", (event) => {
        if (begun === null) return;
        const [x] = at(event);
        if (!mark) mark = make("rect", { class: "select", y: OVERVIEW_TOP, height: this.height - 60 }, this.svg);
        mark.setAttribute("x", Math.min(begun, x));
        mark.setAttribute("width", Math.abs(x - begun));
      });
      const end = (event) => {
        if (begun === null) return;
        const [x] = at(event), ends = [begun, x].sort((a, b) => a - b);
        begun = null;
        if (mark) mark.remove();
        mark = null;
        if (ends[1] - ends[0] < 6) return;
        const [low, high] = whole ? [this.drawn.start_s, this.drawn.end_s] : [this.from, this.to];
        const time = (px) => low + ((px - LEFT) / (this.width - LEFT - RIGHT)) * (high - low);
        this.go(time(Math.max(ends[0], LEFT)), time(Math.min(ends[1], this.width - RIGHT)));
      };
      this.svg.addEventListener("pointerup", end);
      this.svg.addEventListener("pointercancel", () => { begun = null; if (mark) mark.remove(); mark = null; });
    }
    draw() {
      this.svg.replaceChildren();
      this.drawOverview();
      this.drawAxis();
      this.drawn.lanes.forEach((lane, index) => this.drawLane(lane, this.top + index * LANE));
      this.drawKeys();
    }
    // What is in view, and nothing else.
    drawKeys() {
      this.keys.replaceChildren();
      for (const [style, text] of KEYS) {
        const found = this.svg.querySelector(`[class="${style}"]`);
        if (!found) continue;
        const key = make("svg", { class: "key", viewBox: "0 0 26 10", "aria-hidden": "true" }, html("li", this.keys));
        make("path", { d: SHAPES[style] || "M3 0h20v10h-20Z", class: style }, key);
        key.parentNode.append(text);
      }
    }
    scale(low, high) { return (at) => LEFT + ((Math.min(Math.max(at, low), high) - low) / (high - low)) * (this.width - LEFT - RIGHT); }
    drawOverview() {
      const { start_s: low, end_s: high, lanes, bands, marks } = this.drawn;
      const x = this.scale(low, high);
      make("text", { x: LEFT, y: 11, class: "name" }, this.svg, `whole run, ${Number(low.toFixed(2))} to ${Number(high.toFixed(2))} s; drag to look closer`);
      lanes.forEach((lane, index) => {
        const y = OVERVIEW_TOP + index * STRIP;
        make("rect", { x: LEFT, y, width: this.width - LEFT - RIGHT, height: STRIP - 1, class: "unknown" }, this.svg);
        make("text", { x: LEFT - 6, y: y + 10, "text-anchor": "end", class: "lane" }, this.svg, lane.name);
        const held = lane.rows.map(([granted, end]) => `M${x(granted / 1e6).toFixed(1)} ${y}v${STRIP - 1}H${(x(end / 1e6) + 0.5).toFixed(1)}v${1 - STRIP}Z`).join("");
        const overlaps = lane.rows.filter((row) => row[5]).map((row) => `M${x(row[0] / 1e6).toFixed(1)} ${y}v${STRIP - 1}`).join("");
        make("path", { d: held, class: "held" }, this.svg);
        if (overlaps) make("path", { d: overlaps, class: "overlap" }, this.svg);
      });
      bands.forEach(([from, to, text]) => make("title", {}, make("rect", { x: x(from), y: OVERVIEW_TOP - 2, width: Math.max(x(to) - x(from), 1), height: this.overview - OVERVIEW_TOP + 3, class: "fault" }, this.svg), text));
      marks.forEach((mark) => {
        const lane = lanes.findIndex((entry) => entry.resource === mark.resource);
        if (lane >= 0) make("path", { d: `M${x(mark.span_s[0]) - 4} ${OVERVIEW_TOP + lane * STRIP}h8l-4 9z`, class: "mark" }, this.svg);
      });
      make("rect", { x: x(this.from) - 1, y: OVERVIEW_TOP - 3, width: Math.max(x(this.to) - x(this.from), 2) + 2, height: this.overview - OVERVIEW_TOP + 5, class: "view" }, this.svg);
    }
    drawAxis() {
      const x = this.scale(this.from, this.to), bottom = this.top + this.drawn.lanes.length * LANE + 4;
      const width = this.to - this.from, power = 10 ** Math.floor(Math.log10(width / 6));
      const step = [1, 2, 5, 10].map((nice) => nice * power).find((nice) => width / nice <= 7);
      const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
      this.drawn.bands.filter((band) => band[1] >= this.from && band[0] <= this.to).forEach(([from, to, text]) => {
        make("rect", { x: x(from), y: this.top - 14, width: Math.max(x(to) - x(from), 1), height: bottom - this.top + 14, class: "fault" }, this.svg);
        make("text", { x: x(from) + 3, y: this.top - 3, class: "fault-text" }, this.svg, text);
      });
      for (let tick = Math.ceil(this.from / step); tick * step <= this.to; tick += 1) {
        make("path", { d: `M${x(tick * step)} ${this.top - 4}V${bottom}`, class: "grid" }, this.svg);
        make("text", { x: x(tick * step), y: bottom + 14, "text-anchor": "middle" }, this.svg, (tick * step).toFixed(digits));
      }
      make("text", { x: this.width / 2, y: bottom + 30, "text-anchor": "middle", class: "name" }, this.svg, `seconds since the measured window began; ${latency(width)} shown`);
    }
    drawLane(lane, top) {
      const x = this.scale(this.from, this.to);
      make("path", { d: `M${LEFT} ${top + LANE - 4}H${this.width - RIGHT}`, class: "grid" }, this.svg);
      make("text", { x: LEFT - 6, y: top + 17, "text-anchor": "end", class: "lane" }, this.svg, lane.name);
      make("text", { x: LEFT - 6, y: top + 31, "text-anchor": "end" }, this.svg, `${count(lane.leases)} leases`);
      let known = this.from;
      const gap = (from, to) => {
        if (x(to) - x(from) < 2) return;
        make("rect", { x: x(from), y: top, width: x(to) - x(from), height: LANE - 8, class: "unknown" }, this.svg);
        if (x(to) - x(from) > 190) make("text", { x: (x(from) + x(to)) / 2, y: top + 23, "text-anchor": "middle" }, this.svg, "single leases were not kept here");
      };
      lane.spans_us.map(([from, to]) => [from / 1e6, to / 1e6]).filter(([from, to]) => to > this.from && from < this.to).forEach(([from, to]) => {
        if (from > known) gap(known, Math.min(from, this.to));
        known = Math.max(known, to);
      });
      const kept = lane.rows.length === lane.leases;
      if (known < this.to && !kept) gap(known, this.to);
      const ends = [];
      lane.rows.forEach((row) => {
        let place = ends.findIndex((end) => end <= row[0]);
        if (place < 0) place = ends.length < 3 ? ends.length : 2;
        ends[place] = row[1];
        this.drawLease(row, x, top + place * (BAR + 1));
      });
    }
    drawLease([granted, end, valid, work, caller, fault], x, top) {
      const from = granted / 1e6, to = Math.max(end, valid < work ? work : end) / 1e6;
      if (to < this.from || from > this.to) return;
      const width = Math.max(x(end / 1e6) - x(from), 1);
      const bar = make("rect", { x: x(from), y: top, width, height: BAR, class: fault ? "lease bad" : "lease" }, this.svg);
      const over = work > valid ? `, worked ${latency((work - valid) / 1e6)} past its validity` : "";
      const text = `caller ${caller}: granted ${from.toFixed(6)} s, held ${latency((end - granted) / 1e6)}${over}${fault ? ", overlaps another lease" : ""}`;
      make("title", {}, bar, text);
      bar.addEventListener("pointerenter", () => { this.readout.textContent = text; });
      if (work > valid) make("rect", { x: x(valid / 1e6), y: top + 4, width: Math.max(x(work / 1e6) - x(valid / 1e6), 1), height: 4, class: "over" }, this.svg);
      if (width > 58) make("text", { x: x(from) + 4, y: top + 10, style: "fill:var(--paper)", "pointer-events": "none" }, this.svg, `${fault ? "✖ " : ""}caller ${caller}`);
    }
  }

  // -- on paper nothing can be unfolded --------------------------------------------------------------------------
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll(".folded details:not([open])")];
    folded.forEach((details) => { details.open = true; });
  });
  addEventListener("afterprint", () => folded.forEach((details) => { details.open = false; }));

  for (const figure of document.querySelectorAll("[data-figure]")) {
    const name = figure.dataset.figure, data = DATA[name];
    dataOf(figure, name, data);
    if (data.drawn) new Holders(figure, data.drawn);
    else readable(figure, data);
  }
})();
