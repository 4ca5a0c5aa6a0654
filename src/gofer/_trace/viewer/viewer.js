"use strict";
// The viewer of gofer traces. Everything from the trace is put into the page as text (textContent) or
// drawn on a canvas, never parsed as HTML.
//
// The trace comes as columns: span i is goroutine span_g[i] in state span_state[i] from span_start[i] to
// span_end[i]. Rows (Ps, threads, a goroutine) are lists of spans that do not overlap, so what is visible
// is found by binary search. Where spans are narrower than pixels, a column of pixels is drawn as the
// share of time in it, from sums that are kept beside each row. So drawing costs as much as there are
// pixels, however long the trace.

const RUNNABLE = 1, RUNNING = 2, SYSCALL = 3, WAITING = 4;
const STATE_NAMES = { 1: "runnable", 2: "running", 3: "blocking call", 4: "waiting" };
const STATE_VARS = { 1: "--runnable", 2: "--running", 3: "--syscall", 4: "--waiting" };
const LABELS = 112; // width of the column of names
const RULER = 26;

const $ = (id) => document.getElementById(id);

function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else node.setAttribute(name, value);
  }
  for (const child of children) if (child !== null && child !== undefined) node.append(child);
  return node;
}

function showNs(ns) {
  const size = Math.abs(ns);
  for (const [unit, scale] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (size >= scale) return trim(ns / scale) + " " + unit;
  }
  return Math.round(ns) + " ns";
}

function trim(x) {
  const size = Math.abs(x);
  return size >= 100 ? x.toFixed(0) : size >= 10 ? x.toFixed(1) : x.toFixed(2);
}

const showCount = (n) => n.toLocaleString("en-US");

// ---- the trace ----------------------------------------------------------------------------------

const ARRAYS = { f64: Float64Array, u32: Uint32Array, i32: Int32Array, u8: Uint8Array };

class Model {
  constructor(buffer) {
    const size = new DataView(buffer).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
    Object.assign(this, head);
    for (const [name, c] of Object.entries(head.columns)) {
      const type = ARRAYS[c.type];
      this[name] = new type(buffer, 4 + size + c.offset, c.bytes / type.BYTES_PER_ELEMENT);
    }
    this.nspans = this.span_g.length;
    this.ng = this.g_id.length;
    this.threadNames = new Map(this.threads);
    this.indexGoroutines();
    const running = (i) => this.span_state[i] === RUNNING;
    this.ps = this.rowsBy(this.span_p, running, "P", this.held_p);
    const onThread = (i) => this.span_state[i] === RUNNING || this.span_state[i] === SYSCALL;
    this.threadRows = this.rowsBy(this.span_thread, onThread, "T");
    this.held = this.indexHeld();
  }

  string(id) {
    const text = id > 0 ? this.strings[id] : null;
    return text === null || text === undefined ? "?" : text;
  }

  name(g) {
    return this.g_name[g] ? this.string(this.g_name[g]) : "goroutine " + this.g_id[g];
  }

  stack(id) {
    const frames = id > 0 ? this.stacks[id] : null;
    return (frames || []).map(([f, file, line]) => ({ func: this.string(f), file: this.string(file), line }));
  }

  reason(i) {
    const n = this.span_reason[i];
    if (this.span_state[i] === WAITING) return this.wait_reasons[n] || "?";
    if (this.span_state[i] === RUNNABLE) return ["", "gosched", "preempted"][n] || "";
    return "";
  }

  thread(index) {
    return this.threadNames.get(index) || "?";
  }

  // Spans of each goroutine, in order: g's are gSpans[gFirst[g]] to gSpans[gFirst[g + 1] - 1].
  indexGoroutines() {
    const first = new Uint32Array(this.ng + 1);
    for (let i = 0; i < this.nspans; i++) first[this.span_g[i] + 1]++;
    for (let g = 0; g < this.ng; g++) first[g + 1] += first[g];
    const at = first.slice(), list = new Uint32Array(this.nspans);
    this.spanAt = new Uint32Array(this.nspans); // where in gSpans a span is
    for (let i = 0; i < this.nspans; i++) {
      const k = at[this.span_g[i]]++;
      list[k] = i;
      this.spanAt[i] = k;
    }
    this.gFirst = first;
    this.gSpans = list;
  }

  // Spans grouped by a column, each group a Row.
  // `also`: keys that have a row even without spans.
  rowsBy(column, wanted, prefix, also) {
    const counts = new Map();
    for (const key of also || []) if (!counts.has(key)) counts.set(key, 0);
    for (let i = 0; i < this.nspans; i++) {
      if (wanted(i) && column[i] >= 0) counts.set(column[i], (counts.get(column[i]) || 0) + 1);
    }
    const lists = new Map();
    for (const [key, n] of counts) lists.set(key, { list: new Uint32Array(n), n: 0 });
    for (let i = 0; i < this.nspans; i++) {
      if (wanted(i) && column[i] >= 0) {
        const entry = lists.get(column[i]);
        entry.list[entry.n++] = i;
      }
    }
    return [...lists].sort((a, b) => a[0] - b[0])
      .map(([key, entry]) => new Row(this, prefix, key, entry.list));
  }

  rowOfGoroutine(g) {
    return new Row(this, "G", g, this.gSpans.slice(this.gFirst[g], this.gFirst[g + 1]));
  }

  indexHeld() {
    const rows = new Map();
    for (let i = 0; i < this.held_p.length; i++) {
      const key = this.held_thread[i];
      if (!rows.has(key)) rows.set(key, []);
      rows.get(key).push(i);
    }
    return rows;
  }

  before(i) {
    const k = this.spanAt[i];
    return k > this.gFirst[this.span_g[i]] ? this.gSpans[k - 1] : -1;
  }

  after(i) {
    const k = this.spanAt[i];
    return k + 1 < this.gFirst[this.span_g[i] + 1] ? this.gSpans[k + 1] : -1;
  }
}

// Spans that do not overlap, in order of time.
class Row {
  constructor(model, kind, key, list) {
    this.kind = kind;
    this.key = key;
    this.list = list;
    const n = list.length;
    this.start = new Float64Array(n);
    this.end = new Float64Array(n);
    this.sum = new Float64Array(n + 1); // busy time before the k-th
    for (let k = 0; k < n; k++) {
      this.start[k] = model.span_start[list[k]];
      this.end[k] = model.span_end[list[k]];
      this.sum[k + 1] = this.sum[k] + this.end[k] - this.start[k];
    }
  }

  // The first that ends after t.
  find(t) {
    let low = 0, high = this.end.length;
    while (low < high) {
      const mid = (low + high) >> 1;
      if (this.end[mid] > t) high = mid;
      else low = mid + 1;
    }
    return low;
  }

  // Busy time before t, where k = find(t).
  busy(t, k) {
    return this.sum[k] + (k < this.start.length ? Math.max(0, t - this.start[k]) : 0);
  }
}

// ---- the timeline -------------------------------------------------------------------------------

class Timeline {
  constructor(model) {
    this.model = model;
    this.canvas = $("timeline");
    this.overview = $("overview");
    this.scroller = $("scroller");
    const pad = (model.end - model.begin) * 0.005 || 1;
    this.all = { from: model.begin - pad, to: model.end + pad };
    this.view = { ...this.all };
    this.selected = -1; // goroutine
    this.span = -1;
    this.hover = null;
    this.colors = new Map();
    this.frames = 0;
    this.pending = false;
    this.readStyle();
    this.layout();
    this.resize();
    new ResizeObserver(() => this.resize()).observe(this.scroller);
    this.scroller.addEventListener("scroll", () => this.redraw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.readStyle();
      this.redraw();
    });
    this.listen();
  }

  readStyle() {
    const style = getComputedStyle(document.documentElement);
    this.css = (name) => style.getPropertyValue(name).trim();
    this.dark = matchMedia("(prefers-color-scheme: dark)").matches;
    this.colors.clear();
    this.stateColors = [0, 1, 2, 3, 4].map((s) => (s ? this.css(STATE_VARS[s]) : "#888"));
    this.palette = {
      bg: this.css("--bg"), panel: this.css("--panel"), line: this.css("--line"),
      text: this.css("--text"), dim: this.css("--dim"), accent: this.css("--accent"), row: this.css("--row"),
    };
    this.font = "12px " + getComputedStyle(document.body).fontFamily;
    this.small = "11px " + getComputedStyle(document.body).fontFamily;
  }

  // One colour for each name, far from those of its neighbours.
  color(name) {
    let color = this.colors.get(name);
    if (!color) {
      const hue = (name * 137.508 + 205) % 360;
      // Yellow and green look lighter than blue and red of the same lightness.
      const glow = 7 * Math.max(0, Math.cos(((hue - 110) * Math.PI) / 180));
      const light = (this.dark ? 66 : 50) - glow + (name % 3) * 3;
      color = `hsl(${hue.toFixed(1)} ${this.dark ? 50 : 52}% ${light.toFixed(1)}%)`;
      this.colors.set(name, color);
    }
    return color;
  }

  // What is drawn from top to bottom.
  layout() {
    const m = this.model, rows = [];
    let y = RULER;
    const add = (kind, height, label, extra) => {
      rows.push({ kind, y, height, label, ...extra });
      y += height + 2;
    };
    const gap = (n) => { y += n; };
    gap(4);
    add("counts", 54, "goroutines");
    if (m.samples.length) add("queues", 34, "run queues");
    if (m.gc.length || m.stw.length) add("runtime", 16, "GC, stops");
    const tasks = packed(m.tasks, 3), regions = packed(m.regions, 4);
    tasks.forEach((list, i) => add("marks", 17, i ? "" : "tasks", { list, hue: 280 }));
    regions.forEach((list, i) => add("marks", 17, i ? "" : "regions", { list, hue: 190 }));
    if (m.logs.length) add("logs", 15, "logs");
    if (this.selected >= 0) {
      gap(6);
      add("goroutine", 26, "goroutine " + m.g_id[this.selected], { row: m.rowOfGoroutine(this.selected) });
    }
    gap(6);
    for (const row of m.ps) add("p", 30, "P" + row.key, { row });
    gap(6);
    for (const row of m.threadRows) add("thread", 17, m.thread(row.key), { row });
    gap(8);
    this.rows = rows;
    this.height = y;
    $("spacer").style.height = y + "px";
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    this.width = this.scroller.clientWidth;
    this.visible = this.scroller.clientHeight;
    for (const [canvas, height] of [[this.canvas, this.visible], [this.overview, 46]]) {
      canvas.width = Math.max(1, Math.round(this.width * ratio));
      canvas.height = Math.max(1, Math.round(height * ratio));
    }
    this.canvas.style.height = this.visible + "px";
    this.ratio = ratio;
    this.redraw();
  }

  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      const begun = performance.now();
      this.draw();
      this.drawTime = performance.now() - begun;
      this.frames++;
    });
  }

  get plot() {
    return this.width - LABELS;
  }

  x(t) {
    return LABELS + ((t - this.view.from) / (this.view.to - this.view.from)) * this.plot;
  }

  time(x) {
    return this.view.from + ((x - LABELS) / this.plot) * (this.view.to - this.view.from);
  }

  show(from, to) {
    const least = 100, most = this.all.to - this.all.from;
    const span = Math.min(Math.max(to - from, least), most);
    const middle = (from + to) / 2;
    from = Math.min(Math.max(middle - span / 2, this.all.from), this.all.to - span);
    this.view = { from, to: from + span };
    this.redraw();
    if (this.onview) this.onview();
  }

  zoom(factor, x) {
    const t = this.time(x === undefined ? LABELS + this.plot / 2 : x);
    this.show(t - (t - this.view.from) * factor, t + (this.view.to - t) * factor);
  }

  pan(pixels) {
    const by = (pixels / this.plot) * (this.view.to - this.view.from);
    this.show(this.view.from + by, this.view.to + by);
  }

  // ---- drawing ----

  draw() {
    const c = this.canvas.getContext("2d", { alpha: false });
    const p = this.palette, top = this.scroller.scrollTop;
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.fillStyle = p.bg;
    c.fillRect(0, 0, this.width, this.visible);
    this.drawGrid(c);
    for (const row of this.rows) {
      const y = row.y - top;
      if (y + row.height < RULER || y > this.visible) continue;
      this["draw_" + row.kind](c, row, y);
    }
    this.drawArrows(c, top);
    this.drawLabels(c, top);
    this.drawRuler(c);
    this.drawOverview();
  }

  steps() {
    const span = this.view.to - this.view.from;
    const rough = span / Math.max(2, this.plot / 110);
    const power = Math.pow(10, Math.floor(Math.log10(rough)));
    const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough);
    const found = [];
    const base = this.model.begin;
    let t = Math.ceil((this.view.from - base) / step) * step;
    for (; t <= this.view.to - base; t += step) found.push(t);
    return { step, found };
  }

  drawGrid(c) {
    c.fillStyle = this.palette.line;
    c.globalAlpha = 0.55;
    for (const t of this.steps().found) c.fillRect(Math.round(this.x(t + this.model.begin)), RULER, 1, this.visible);
    c.globalAlpha = 1;
  }

  drawRuler(c) {
    const p = this.palette;
    c.fillStyle = p.panel;
    c.fillRect(0, 0, this.width, RULER);
    c.fillStyle = p.line;
    c.fillRect(0, RULER - 1, this.width, 1);
    c.font = this.small;
    c.textBaseline = "middle";
    c.textAlign = "left";
    const { step, found } = this.steps();
    for (const t of found) {
      const x = Math.round(this.x(t + this.model.begin));
      if (x < LABELS) continue;
      c.fillStyle = p.line;
      c.fillRect(x, RULER - 8, 1, 8);
      c.fillStyle = p.dim;
      c.fillText(showTick(t, step), x + 4, RULER / 2);
    }
    c.fillStyle = p.panel;
    c.fillRect(0, 0, LABELS, RULER - 1);
    c.fillStyle = p.text;
    c.font = this.small;
    c.fillText(showNs(this.view.to - this.view.from), 12, RULER / 2);
    if (this.drag && this.drag.ruler) {
      const a = this.x(this.drag.t), b = this.x(this.drag.to);
      c.fillStyle = p.accent;
      c.globalAlpha = 0.25;
      c.fillRect(Math.min(a, b), 0, Math.abs(b - a), this.visible);
      c.globalAlpha = 1;
    }
  }

  drawLabels(c, top) {
    const p = this.palette;
    c.fillStyle = p.panel;
    c.fillRect(0, RULER, LABELS, this.visible);
    c.fillStyle = p.line;
    c.fillRect(LABELS - 1, RULER, 1, this.visible);
    c.textBaseline = "middle";
    c.textAlign = "left";
    for (const row of this.rows) {
      const y = row.y - top;
      if (y + row.height < 0 || y > this.visible) continue;
      const strong = row.kind === "p" || row.kind === "goroutine";
      c.font = strong ? "600 " + this.font : this.small;
      c.fillStyle = strong ? p.text : p.dim;
      c.fillText(clip(c, row.label, LABELS - 20), 12, y + row.height / 2 - (row.kind === "p" ? 6 : 0));
      if (row.kind === "p") {
        const share = this.share(row.row);
        c.font = this.small;
        c.fillStyle = p.dim;
        c.fillText((share * 100).toFixed(share < 0.0995 ? 1 : 0) + " %", 12, y + row.height / 2 + 8);
        c.fillStyle = p.line;
        c.fillRect(52, y + row.height / 2 + 6, 46, 4);
        c.fillStyle = this.stateColors[RUNNING];
        c.fillRect(52, y + row.height / 2 + 6, 46 * Math.min(1, share), 4);
      }
    }
  }

  // How busy a row is in view.
  share(row) {
    const from = Math.max(this.view.from, this.model.begin), to = Math.min(this.view.to, this.model.end);
    return to > from ? (row.busy(to, row.find(to)) - row.busy(from, row.find(from))) / (to - from) : 0;
  }

  // A row of spans. `color(i)` is the colour of span i; `label(i)` what is written in it, or nothing.
  drawSpans(c, row, y, height, color, label) {
    const first = row.find(this.view.from), last = row.find(this.view.to);
    const visible = last - first;
    if (visible > this.plot * 2) {
      this.drawDense(c, row, y, height, color);
      return;
    }
    const texts = [];
    let filled = -1; // what lies left of this pixel is drawn
    for (let k = first; k < row.start.length && row.start[k] < this.view.to; k++) {
      const i = row.list[k];
      const x = Math.max(LABELS, this.x(row.start[k]));
      const right = Math.min(this.width, this.x(row.end[k]));
      if (right < filled && right - x < 0.5) continue;
      const w = Math.max(right - x, 0.7);
      c.fillStyle = color(i);
      c.fillRect(x, y, w > 3 ? w - 0.6 : w, height);
      filled = x + w;
      if (label && w > 34) texts.push([i, x, w]);
    }
    c.font = this.small;
    c.textBaseline = "middle";
    const strong = this.dark ? "#0d1118" : "#ffffff";
    for (const [i, x, w] of texts) {
      const aside = this.selected >= 0 && this.model.span_g[i] !== this.selected;
      c.fillStyle = aside && this.model.span_state[i] === RUNNING ? this.palette.dim : strong;
      const text = clip(c, label(i), w - 10);
      if (text) c.fillText(text, x + 5, y + height / 2 + 0.5);
    }
  }

  // More spans than pixels: how much of each column of pixels is busy, in the colour of what is in its middle.
  drawDense(c, row, y, height, color) {
    const pixel = (this.view.to - this.view.from) / this.plot;
    let k = row.find(this.view.from), busy = row.busy(this.view.from, k);
    const n = row.start.length;
    for (let x = 0; x < this.plot; x++) {
      const to = this.view.from + (x + 1) * pixel, middle = to - pixel / 2;
      // Columns follow one another: look near first, then search.
      let next = k, steps = 0;
      while (next < n && row.end[next] <= to && steps < 32) { next++; steps++; }
      if (steps === 32) next = row.find(to);
      const before = busy;
      busy = row.busy(to, next);
      if (busy > before) {
        let at = k + ((next - k) >> 1);
        if (at >= n) at = n - 1;
        if (row.start[at] > to || row.end[at] < to - pixel) at = Math.min(n - 1, row.find(middle));
        const share = Math.min(1, (busy - before) / pixel);
        c.fillStyle = color(row.list[at]);
        const h = Math.max(1.5, height * share);
        c.fillRect(LABELS + x, y + height - h, 1, h);
      }
      k = next;
    }
  }

  tint(i) {
    const m = this.model;
    if (this.selected >= 0 && m.span_g[i] !== this.selected) return this.faded(m.g_name[m.span_g[i]]);
    return this.color(m.g_name[m.span_g[i]]);
  }

  faded(name) {
    const key = -1 - name;
    let color = this.colors.get(key);
    if (!color) {
      const hue = (name * 137.508 + 205) % 360;
      color = `hsl(${hue.toFixed(1)} ${this.dark ? 16 : 22}% ${this.dark ? 34 : 82}%)`;
      this.colors.set(key, color);
    }
    return color;
  }

  draw_p(c, row, y) {
    c.fillStyle = this.palette.row;
    c.fillRect(LABELS, y, this.plot, row.height);
    this.drawSpans(c, row.row, y + 2, row.height - 4, (i) => this.tint(i), (i) => this.model.name(this.model.span_g[i]));
    this.outline(c, row.row, y + 2, row.height - 4);
  }

  draw_thread(c, row, y) {
    const m = this.model;
    c.fillStyle = this.palette.row;
    c.fillRect(LABELS, y, this.plot, row.height);
    c.fillStyle = this.stateColors[RUNNING];
    c.globalAlpha = 0.28;
    const held = m.held.get(row.row.key) || [];
    let filled = -1;
    for (let k = lowerBound(held, (i) => m.held_end[i] > this.view.from); k < held.length; k++) {
      const i = held[k];
      if (m.held_start[i] > this.view.to) break;
      const x = Math.max(LABELS, this.x(m.held_start[i])), right = this.x(m.held_end[i]);
      if (right < filled + 0.5) continue;
      c.fillRect(x, y, Math.max(0.7, right - x), row.height);
      filled = Math.max(right, x + 0.7);
    }
    c.globalAlpha = 1;
    const color = (i) => (m.span_state[i] === SYSCALL ? this.stateColors[SYSCALL] : this.tint(i));
    const label = (i) => (m.span_state[i] === SYSCALL ? "without a P: " : "") + m.name(m.span_g[i]);
    this.drawSpans(c, row.row, y + 3, row.height - 6, color, label);
    this.outline(c, row.row, y + 3, row.height - 6);
  }

  draw_goroutine(c, row, y) {
    const m = this.model;
    c.fillStyle = this.palette.row;
    c.fillRect(LABELS, y, this.plot, row.height);
    const label = (i) => {
      const why = m.reason(i), p = m.span_p[i];
      if (m.span_state[i] === RUNNING) return "P" + p;
      return STATE_NAMES[m.span_state[i]] + (why ? ": " + why : "");
    };
    this.drawSpans(c, row.row, y + 3, row.height - 6, (i) => this.stateColors[m.span_state[i]], label);
    this.outline(c, row.row, y + 3, row.height - 6);
  }

  outline(c, row, y, height) {
    if (this.span < 0) return;
    const t = this.model.span_start[this.span];
    const k = row.find(t);
    if (row.list[k] !== this.span) return;
    const x = this.x(row.start[k]), right = this.x(row.end[k]);
    if (right < LABELS || x > this.width) return;
    c.strokeStyle = this.palette.text;
    c.lineWidth = 2;
    c.strokeRect(Math.max(LABELS - 4, x) - 0.5, y - 0.5, Math.max(3, Math.min(right, this.width + 4) - Math.max(LABELS - 4, x)), height + 1);
  }

  draw_counts(c, row, y) {
    const m = this.model, n = m.nbins, width = (m.end - m.begin) / n;
    let most = 1;
    const order = [RUNNING, SYSCALL, RUNNABLE, WAITING];
    const from = Math.max(0, Math.floor((this.view.from - m.begin) / width));
    const to = Math.min(n - 1, Math.ceil((this.view.to - m.begin) / width));
    const total = (b) => order.reduce((sum, s) => sum + m.bins[5 * b + s], 0);
    for (let b = from; b <= to; b++) most = Math.max(most, total(b));
    const step = Math.max(1, Math.floor((to - from) / this.plot));
    for (let b = from; b <= to; b += step) {
      const x = Math.max(LABELS, this.x(m.begin + b * width));
      const w = Math.max(1, this.x(m.begin + (b + step) * width) - x);
      let base = y + row.height;
      for (const s of order) {
        const h = (m.bins[5 * b + s] / most) * row.height;
        if (h <= 0) continue;
        c.fillStyle = this.stateColors[s];
        c.globalAlpha = s === WAITING ? 0.45 : 1;
        c.fillRect(x, base - h, w + 0.5, h);
        base -= h;
      }
    }
    c.globalAlpha = 1;
    this.scaleText(c, y, "max " + showCount(most));
  }

  draw_queues(c, row, y) {
    const samples = this.model.samples;
    let first = lowerBound(samples, (s) => s[0] > this.view.from);
    first = Math.max(0, first - 1);
    let most = 1, last = first;
    for (; last < samples.length && (last === first || samples[last - 1][0] < this.view.to); last++) {
      most = Math.max(most, samples[last][1] + samples[last][2]);
    }
    const step = Math.max(1, Math.floor((last - first) / this.plot));
    for (const [color, value] of [[this.stateColors[RUNNABLE], (s) => s[1] + s[2]], [this.palette.accent, (s) => s[2]]]) {
      c.fillStyle = color;
      for (let k = first; k < last; k += step) {
        const x = Math.max(LABELS, this.x(samples[k][0]));
        const next = samples[Math.min(k + step, samples.length - 1)];
        const right = Math.max(x + 1, this.x(k + step < samples.length ? next[0] : this.model.end));
        const h = (value(samples[k]) / most) * (row.height - 2);
        c.fillRect(x, y + row.height - h, right - x, h);
      }
    }
    this.scaleText(c, y, "max " + showCount(most));
  }

  scaleText(c, y, text) {
    c.font = this.small;
    c.textBaseline = "top";
    c.textAlign = "right";
    const width = c.measureText(text).width;
    c.fillStyle = this.palette.bg;
    c.globalAlpha = 0.8;
    c.fillRect(this.width - width - 12, y, width + 8, 15);
    c.globalAlpha = 1;
    c.fillStyle = this.palette.dim;
    c.fillText(text, this.width - 8, y + 2);
    c.textAlign = "left";
  }

  draw_runtime(c, row, y) {
    for (const [list, color] of [[this.model.gc, "--accent"], [this.model.stw, "--syscall"]]) {
      c.fillStyle = this.css(color);
      this.drawMarks(c, list, y, row.height, null);
    }
  }

  draw_marks(c, row, y) {
    c.fillStyle = `hsl(${row.hue} ${this.dark ? "40% 55%" : "50% 60%"})`;
    this.drawMarks(c, row.list, y, row.height, (m) => m[2]);
  }

  drawMarks(c, list, y, height, label) {
    const texts = [];
    let filled = -1;
    for (let k = lowerBound(list, (m) => m[1] > this.view.from); k < list.length && list[k][0] < this.view.to; k++) {
      const x = Math.max(LABELS, this.x(list[k][0])), right = Math.min(this.width, this.x(list[k][1]));
      if (right < filled + 0.5) continue;
      const w = Math.max(1, right - x - 0.5);
      c.fillRect(x, y, w, height);
      filled = x + w;
      if (label && w > 30) texts.push([label(list[k]), x, w]);
    }
    c.fillStyle = this.dark ? "#0d1118" : "#ffffff";
    c.font = this.small;
    c.textBaseline = "middle";
    for (const [text, x, w] of texts) c.fillText(clip(c, text, w - 8), x + 4, y + height / 2 + 0.5);
  }

  draw_logs(c, row, y) {
    c.fillStyle = this.palette.accent;
    let last = -9;
    const logs = this.model.logs;
    for (let k = lowerBound(logs, (l) => l[0] >= this.view.from); k < logs.length && logs[k][0] <= this.view.to; k++) {
      const x = this.x(logs[k][0]);
      if (x < last + 2) continue;
      last = x;
      c.beginPath();
      c.moveTo(x, y + 2);
      c.lineTo(x + 4, y + 8);
      c.lineTo(x, y + 14);
      c.lineTo(x - 4, y + 8);
      c.fill();
    }
  }

  // From who woke a goroutine to where it runs then. Of the selected one, or of all if they are few.
  drawArrows(c, top) {
    const m = this.model;
    const yOf = new Map();
    for (const row of this.rows) if (row.kind === "p") yOf.set(row.row.key, row.y - top + row.height / 2);
    const arrows = [];
    const consider = (i) => { // i runs: was it woken?
      const woken = m.before(i);
      if (woken < 0 || m.span_state[woken] !== RUNNABLE || !m.span_by[woken]) return;
      if (!yOf.has(m.span_p[woken]) || !yOf.has(m.span_p[i])) return;
      if (m.span_start[woken] > this.view.to || m.span_start[i] < this.view.from) return;
      arrows.push([this.x(m.span_start[woken]), yOf.get(m.span_p[woken]), this.x(m.span_start[i]), yOf.get(m.span_p[i])]);
    };
    let visible = 0;
    for (const row of m.ps) visible += row.find(this.view.to) - row.find(this.view.from);
    if (visible < 160) {
      for (const row of m.ps) {
        for (let k = row.find(this.view.from); k < row.start.length && row.start[k] < this.view.to; k++) consider(row.list[k]);
      }
    } else if (this.selected >= 0) {
      const row = this.rows.find((r) => r.kind === "goroutine").row;
      const first = row.find(this.view.from), last = row.find(this.view.to);
      if (last - first < 400) {
        for (let k = first; k <= last && k < row.list.length; k++) {
          if (m.span_state[row.list[k]] === RUNNING) consider(row.list[k]);
        }
      }
    }
    this.arrows = arrows.length;
    c.save();
    c.beginPath();
    c.rect(LABELS, RULER, this.plot, this.visible);
    c.clip();
    c.strokeStyle = c.fillStyle = this.palette.text;
    c.lineWidth = 1.1;
    for (const [x1, y1, x2, y2] of arrows) {
      c.globalAlpha = 0.55;
      c.beginPath();
      c.moveTo(x1, y1);
      const bend = Math.max(14, Math.abs(x2 - x1) * 0.4);
      const lift = y1 === y2 ? 16 : 0;
      c.bezierCurveTo(x1 + bend, y1 - lift, x2 - bend, y2 - lift, x2, y2);
      c.stroke();
      c.globalAlpha = 0.85;
      c.beginPath();
      c.arc(x1, y1, 2, 0, 7);
      c.fill();
      c.beginPath();
      c.moveTo(x2 + 1, y2);
      c.lineTo(x2 - 6, y2 - 3.5);
      c.lineTo(x2 - 6, y2 + 3.5);
      c.fill();
    }
    c.restore();
  }

  drawOverview() {
    const c = this.overview.getContext("2d", { alpha: false });
    const p = this.palette, height = 46;
    if (!this.overviewImage || this.overviewImage.width !== this.overview.width || this.overviewDark !== this.dark) {
      this.overviewDark = this.dark;
      const image = document.createElement("canvas");
      image.width = this.overview.width;
      image.height = this.overview.height;
      const d = image.getContext("2d", { alpha: false });
      d.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      d.fillStyle = p.panel;
      d.fillRect(0, 0, this.width, height);
      const view = this.view, rows = this.model.ps, selected = this.selected;
      this.view = { ...this.all };
      this.selected = -1;
      const each = (height - 8) / Math.max(1, rows.length);
      rows.forEach((row, k) => this.drawDense(d, row, 4 + k * each, Math.max(1, each - 1), (i) => this.tint(i)));
      this.view = view;
      this.selected = selected;
      this.overviewImage = image;
    }
    c.setTransform(1, 0, 0, 1, 0, 0);
    c.drawImage(this.overviewImage, 0, 0);
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    const span = this.all.to - this.all.from;
    const a = LABELS + ((this.view.from - this.all.from) / span) * this.plot;
    const b = LABELS + ((this.view.to - this.all.from) / span) * this.plot;
    c.fillStyle = p.bg;
    c.globalAlpha = 0.72;
    c.fillRect(LABELS, 0, a - LABELS, height);
    c.fillRect(b, 0, this.width - b, height);
    c.globalAlpha = 1;
    c.strokeStyle = p.accent;
    c.lineWidth = 1.5;
    c.strokeRect(a, 1, Math.max(2, b - a - 1), height - 2);
    c.fillStyle = p.dim;
    c.font = this.small;
    c.textBaseline = "middle";
    c.fillText("overview", 12, height / 2);
  }

  // ---- pointer and keys ----

  // What is at a point of the canvas: a row, and a span or mark in it.
  at(x, y) {
    if (y < RULER) return { ruler: true };
    const top = this.scroller.scrollTop;
    const row = this.rows.find((r) => y + top >= r.y && y + top < r.y + r.height + 2);
    if (!row) return {};
    if (x < LABELS) return { row, label: true };
    const t = this.time(x), slack = ((this.view.to - this.view.from) / this.plot) * 2;
    if (row.row) {
      let k = row.row.find(t);
      if (k >= row.row.start.length || row.row.start[k] > t) {
        const near = [k, k - 1].find((n) => n >= 0 && n < row.row.start.length &&
          row.row.start[n] - slack <= t && row.row.end[n] + slack >= t);
        if (near === undefined) return { row, t };
        k = near;
      }
      return { row, t, span: row.row.list[k] };
    }
    const lists = { runtime: [this.model.gc, this.model.stw], marks: [row.list], logs: [this.model.logs] }[row.kind];
    for (const list of lists || []) {
      const found = list.find((m) => m[0] - slack <= t && (row.kind === "logs" ? m[0] : m[1]) + slack >= t);
      if (found) return { row, t, mark: found };
    }
    return { row, t };
  }

  listen() {
    const canvas = this.canvas;
    const point = (e) => {
      const box = canvas.getBoundingClientRect();
      return [e.clientX - box.left, e.clientY - box.top];
    };
    this.scroller.addEventListener("wheel", (e) => {
      const [x] = point(e);
      if (x < LABELS && !e.ctrlKey) return;
      e.preventDefault();
      const unit = e.deltaMode === 1 ? 16 : 1;
      if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) this.pan((e.deltaX || e.deltaY) * unit);
      else this.zoom(Math.pow(1.0016, e.deltaY * unit), x);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (e) => {
      if (e.button !== 0) return;
      const [x, y] = point(e);
      this.scroller.focus({ preventScroll: true });
      this.drag = { x, y, moved: false, ruler: y < RULER && x >= LABELS, t: this.time(x), to: this.time(x), view: this.view };
      canvas.setPointerCapture(e.pointerId);
    });
    canvas.addEventListener("pointermove", (e) => {
      const [x, y] = point(e);
      if (!this.drag) {
        this.hoverAt(x, y);
        return;
      }
      const d = this.drag;
      if (Math.abs(x - d.x) + Math.abs(y - d.y) > 3) d.moved = true;
      if (!d.moved) return;
      tip(null);
      if (d.ruler) {
        d.to = this.time(x);
        this.redraw();
      } else {
        const by = ((d.x - x) / this.plot) * (d.view.to - d.view.from);
        this.show(d.view.from + by, d.view.to + by);
      }
    });
    const up = (e) => {
      const d = this.drag, [x, y] = point(e);
      this.drag = null;
      if (!d) return;
      if (d.ruler && d.moved) this.show(Math.min(d.t, d.to), Math.max(d.t, d.to));
      else if (!d.moved) this.click(x, y);
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", () => { this.drag = null; });
    canvas.addEventListener("pointerleave", () => tip(null));
    canvas.addEventListener("dblclick", (e) => {
      const hit = this.at(...point(e));
      if (hit.span !== undefined) this.reveal(hit.span, true);
      else if (hit.mark) this.show(hit.mark[0] - (hit.mark[1] - hit.mark[0]) * 0.2, hit.mark[1] + (hit.mark[1] - hit.mark[0]) * 0.2);
    });
    const move = (e) => {
      const box = this.overview.getBoundingClientRect();
      const t = this.all.from + ((e.clientX - box.left - LABELS) / this.plot) * (this.all.to - this.all.from);
      const half = (this.view.to - this.view.from) / 2;
      this.show(t - half, t + half);
    };
    this.overview.addEventListener("pointerdown", (e) => {
      this.overview.setPointerCapture(e.pointerId);
      move(e);
    });
    this.overview.addEventListener("pointermove", (e) => { if (e.buttons) move(e); });
  }

  hoverAt(x, y) {
    const hit = this.at(x, y);
    this.canvas.style.cursor = hit.span !== undefined || hit.mark ? "pointer" : hit.ruler ? "col-resize" : "default";
    if (hit.span !== undefined) tip(spanTip(this.model, hit.span), x, y);
    else if (hit.mark) tip(markTip(this.model, hit.row, hit.mark), x, y);
    else if (hit.row && hit.row.kind === "counts" && hit.t !== undefined) tip(countsTip(this.model, hit.t), x, y);
    else tip(null);
  }

  click(x, y) {
    const hit = this.at(x, y);
    if (hit.span !== undefined) this.select(this.model.span_g[hit.span], hit.span);
    else if (hit.mark && hit.mark[hit.row.kind === "logs" ? 1 : 3] !== null) {
      this.select(hit.mark[hit.row.kind === "logs" ? 1 : 3], -1);
    } else if (!hit.ruler && !hit.label) this.select(-1, -1);
  }

  select(g, span) {
    this.selected = g;
    this.span = span;
    this.layout();
    this.redraw();
    if (this.onselect) this.onselect(g, span);
  }

  // Bring a span into view.
  reveal(i, close) {
    const m = this.model, a = m.span_start[i], b = m.span_end[i];
    const span = Math.max((b - a) * 3, close ? 0 : 2000);
    this.show((a + b) / 2 - span / 2, (a + b) / 2 + span / 2);
    this.select(m.span_g[i], i);
  }
}

// Intervals that overlap, spread over at most `most` rows; what does not fit goes to the last.
function packed(list, most) {
  const rows = [], ends = [];
  for (const item of [...list].sort((a, b) => a[0] - b[0])) {
    let k = ends.findIndex((end) => end <= item[0]);
    if (k < 0) k = rows.length < most ? rows.length : most - 1;
    if (!rows[k]) rows[k] = [];
    rows[k].push(item);
    ends[k] = Math.max(ends[k] || 0, item[1]);
  }
  return rows;
}

function lowerBound(list, holds) {
  let low = 0, high = list.length;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (holds(list[mid])) high = mid;
    else low = mid + 1;
  }
  return low;
}

function clip(c, text, width) {
  if (width < 8) return "";
  text = text.length > 200 ? text.slice(0, 200) : text;
  if (c.measureText(text).width <= width) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const mid = (low + high + 1) >> 1;
    if (c.measureText(text.slice(0, mid) + "…").width <= width) low = mid;
    else high = mid - 1;
  }
  return low > 0 ? text.slice(0, low) + "…" : "";
}

function showTick(t, step) {
  for (const [unit, scale] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (Math.max(Math.abs(t), step) >= scale) {
      const digits = Math.max(0, Math.ceil(-Math.log10(step / scale) - 1e-9));
      return (t / scale).toFixed(Math.min(digits, 9)) + " " + unit;
    }
  }
  return Math.round(t) + " ns";
}

// ---- tool tips ----------------------------------------------------------------------------------

function tip(lines, x, y) {
  const node = $("tip");
  node.hidden = !lines;
  if (!lines) return;
  node.replaceChildren(make("b", {}, lines[0]), lines.slice(1).join("\n"));
  const stage = $("stage").getBoundingClientRect();
  const left = Math.min(x + 16, stage.width - node.offsetWidth - 8);
  const above = y + 46 + 20 + node.offsetHeight > stage.height;
  node.style.left = Math.max(4, left) + "px";
  node.style.top = (above ? Math.max(4, y + 46 - node.offsetHeight - 10) : y + 46 + 18) + "px";
}

function spanTip(m, i) {
  const g = m.span_g[i], state = m.span_state[i], why = m.reason(i);
  const lines = [m.name(g), `goroutine ${m.g_id[g]}`];
  let what = STATE_NAMES[state] + (why ? " (" + why + ")" : "");
  if (state === RUNNING) what += " on P" + m.span_p[i] + ", " + m.thread(m.span_thread[i]);
  if (state === SYSCALL) what += " on " + m.thread(m.span_thread[i]);
  lines.push(`${what} for ${showNs(m.span_end[i] - m.span_start[i])}`, `at ${showNs(m.span_start[i] - m.begin)}`);
  const before = m.before(i);
  if (state === RUNNING && before >= 0 && m.span_state[before] === RUNNABLE) {
    lines.push(`after ${showNs(m.span_end[before] - m.span_start[before])} ready to run`);
  }
  return lines;
}

function markTip(m, row, mark) {
  if (row.kind === "logs") return [mark[4] ? mark[4] + ": " + mark[5] : mark[5], showNs(mark[0] - m.begin)];
  const name = row.kind === "runtime" ? (m.gc.includes(mark) ? "garbage collection, " : "world stopped, ") + mark[2] : mark[2];
  const lines = [name, showNs(mark[1] - mark[0]) + " at " + showNs(mark[0] - m.begin)];
  if (mark[3] !== null) lines.push("goroutine " + m.g_id[mark[3]] + ", " + m.name(mark[3]));
  return lines;
}

function countsTip(m, t) {
  const b = Math.min(m.nbins - 1, Math.max(0, Math.floor(((t - m.begin) / (m.end - m.begin)) * m.nbins)));
  const line = (s) => `${STATE_NAMES[s]}: ${showCount(m.bins[5 * b + s])}`;
  return ["goroutines at " + showNs(t - m.begin), ...[RUNNING, RUNNABLE, SYSCALL, WAITING].map(line)];
}

// ---- tables -------------------------------------------------------------------------------------

// A table of any length: only the rows in sight exist.
class VirtualTable {
  constructor(columns, rows, onclick, options = {}) {
    this.columns = columns;
    this.rows = rows;
    this.order = null;
    this.sortBy = null;
    this.onclick = onclick;
    this.isOn = options.isOn || (() => false);
    const grid = columns.map((c) => c.width || "1fr").join(" ");
    this.grid = grid;
    this.node = make("div", { class: "vt", role: "table" });
    this.head = make("div", { class: "vt-head", role: "row", style: { gridTemplateColumns: grid } });
    columns.forEach((column, k) => {
      const cell = make("div", { class: column.num ? "num" : "", role: "columnheader", title: column.help || "", onclick: () => this.sort(k) }, column.title);
      this.head.append(cell);
    });
    this.body = make("div", { class: "vt-body", role: "rowgroup" });
    this.pad = make("div", {});
    this.node.append(this.head, this.body);
    this.body.addEventListener("scroll", () => this.fill());
    new ResizeObserver(() => this.fill()).observe(this.body);
    if (options.min) this.node.style.setProperty("--vt-min", options.min);
    if (options.sort !== undefined) this.sort(options.sort);
  }

  sort(k) {
    const column = this.columns[k];
    if (!column.value) return;
    const down = this.sortBy && this.sortBy.k === k ? !this.sortBy.down : column.num;
    this.sortBy = { k, down };
    const n = this.rows.length, keys = new Array(n);
    for (let i = 0; i < n; i++) keys[i] = column.value(this.rows.get ? this.rows.get(i) : this.rows[i]);
    const order = Array.from({ length: n }, (_, i) => i);
    const text = n > 0 && typeof keys[0] === "string";
    order.sort((a, b) => (text ? (keys[a] < keys[b] ? -1 : keys[a] > keys[b] ? 1 : 0) : keys[a] - keys[b]) * (down ? -1 : 1) || a - b);
    this.order = order;
    [...this.head.children].forEach((cell, i) => {
      cell.setAttribute("aria-sort", i !== k ? "none" : down ? "descending" : "ascending");
      cell.textContent = this.columns[i].title + (i !== k ? "" : down ? " ↓" : " ↑");
    });
    this.fill();
  }

  row(i) {
    const at = this.order ? this.order[i] : i;
    return this.rows.get ? this.rows.get(at) : this.rows[at];
  }

  fill() {
    const height = 24, n = this.rows.length;
    if (n === 0) {
      this.body.replaceChildren(make("div", { class: "vt-empty" }, "Nothing here."));
      return;
    }
    // Browsers do not draw boxes of millions of pixels: scale where there are too many rows.
    const full = n * height, tall = Math.min(full, 8e6), box = this.body.clientHeight;
    const scroll = this.body.scrollTop, share = tall > box ? scroll / (tall - box) : 0;
    const offset = tall === full ? scroll : share * (full - box);
    const first = Math.max(0, Math.floor(offset / height) - 4);
    const last = Math.min(n, Math.ceil((offset + box) / height) + 4);
    const nodes = [this.pad];
    this.pad.style.height = tall + "px";
    for (let i = first; i < last; i++) {
      const row = this.row(i);
      const node = make("div", { class: "vt-row" + (this.isOn(row) ? " on" : ""), role: "row", style: { gridTemplateColumns: this.grid, top: i * height - offset + scroll + "px" } });
      for (const column of this.columns) {
        const text = column.show(row);
        const cell = make("div", { class: column.num ? "num" : "", role: "cell" }, text);
        if (typeof text === "string" && !column.num) cell.title = text;
        node.append(cell);
      }
      node.addEventListener("click", () => this.onclick(row));
      nodes.push(node);
    }
    this.body.replaceChildren(...nodes);
  }

  reveal(i) {
    const at = this.order ? this.order.indexOf(i) : i;
    this.body.scrollTop = Math.max(0, at * 24 - this.body.clientHeight / 2);
    this.fill();
  }
}

function stateBar(parts) { // [[state, ns], ...]
  const total = parts.reduce((sum, [, ns]) => sum + ns, 0) || 1;
  const bar = make("div", { class: "mini" });
  for (const [state, ns] of parts) {
    if (ns > 0) bar.append(make("i", { style: { width: (100 * ns) / total + "%", background: `var(${STATE_VARS[state]})` } }));
  }
  return bar;
}

// ---- the page -----------------------------------------------------------------------------------

class Viewer {
  constructor(model) {
    this.model = model;
    this.timeline = new Timeline(model);
    this.timeline.onselect = (g, span) => this.showDetails(g, span);
    this.timeline.onview = () => this.keepPlace();
    this.showFacts();
    this.makeTabs();
    this.listen();
    this.fromHash();
  }

  showFacts() {
    const m = this.model, s = m.summary;
    const name = String(m.info.program || "gofer trace");
    $("program").textContent = name;
    document.title = name + " — gofer trace";
    const fact = (value, what, warn) => make("span", { class: warn ? "warn" : "" }, make("b", {}, value), " " + what);
    $("facts").append(
      fact(showNs(m.end - m.begin), "long"),
      fact(showCount(s.goroutines), "goroutines"),
      fact(showCount(s.events), "events"),
      fact(String(s.procs), s.procs === 1 ? "P" : "Ps"),
      fact(String(s.threads), "threads"),
      fact(showNs(s.latencies.p99), "p99 latency"));
    if (s.lost) $("facts").prepend(fact(showCount(s.lost), "events lost", true));
    const python = "Python " + m.info.python + (m.info.free_threaded ? ", free-threaded" : "");
    $("facts").append(make("span", {}, python));
  }

  makeTabs() {
    const m = this.model, s = m.summary;
    const time = (title, key, help) => ({ title, num: true, width: "104px", help, value: (r) => r[key], show: (r) => showNs(r[key]) });
    const functions = [
      { title: "Function", width: "minmax(160px, 2fr)", value: (r) => r.name, show: (r) => r.name },
      { title: "Count", num: true, width: "86px", value: (r) => r.count, show: (r) => showCount(r.count) },
      { title: "", width: "120px", show: (r) => stateBar([[RUNNING, r.running], [SYSCALL, r.syscall], [RUNNABLE, r.runnable], [WAITING, r.waiting]]) },
      time("Running", "running"),
      time("Blocking calls", "syscall", "without a P"),
      time("Runnable", "runnable", "ready, but not running"),
      time("Worst", "worst_latency", "worst scheduling latency"),
      time("Waiting", "waiting"),
      { title: "For what", width: "minmax(160px, 2fr)", show: (r) => Object.entries(r.waits).map(([why, ns]) => `${why} ${showNs(ns)}`).join(", ") },
    ];
    const total = (state) => (g) => m.g_total[5 * g + state];
    const gtime = (title, state) => ({ title, num: true, width: "100px", value: total(state), show: (g) => showNs(total(state)(g)) });
    const goroutines = [
      { title: "Id", num: true, width: "80px", value: (g) => m.g_id[g], show: (g) => String(m.g_id[g]) },
      { title: "Name", width: "minmax(140px, 2fr)", value: (g) => m.name(g), show: (g) => m.name(g) },
      { title: "Began", num: true, width: "96px", value: (g) => m.g_created[g], show: (g) => (m.g_created[g] < 0 ? "before" : showNs(m.g_created[g] - m.begin)) },
      { title: "", width: "110px", show: (g) => stateBar([RUNNING, SYSCALL, RUNNABLE, WAITING].map((x) => [x, total(x)(g)])) },
      gtime("Running", RUNNING), gtime("Blocking calls", SYSCALL), gtime("Runnable", RUNNABLE), gtime("Waiting", WAITING),
      { title: "End", width: "96px", value: (g) => m.g_end[g], show: (g) => (m.g_ended[g] < 0 ? "alive" : m.ends[m.g_end[g]] || "") },
      { title: "Created at", width: "minmax(150px, 2fr)", show: (g) => this.site(g) },
    ];
    const notable = (why) => [
      { title: "Took", num: true, width: "96px", value: (r) => r.end - r.start, show: (r) => showNs(r.end - r.start) },
      { title: "At", num: true, width: "96px", value: (r) => r.start, show: (r) => showNs(r.start - m.begin) },
      { title: "Goroutine", width: "minmax(160px, 1.4fr)", value: (r) => r.name, show: (r) => `${r.name} (${r.id})` },
      { title: why, width: "minmax(120px, 1fr)", value: (r) => r.reason, show: (r) => r.reason },
      { title: "Where", width: "minmax(200px, 2fr)", show: (r) => r.where[0] || "" },
      { title: "Woken by", width: "minmax(120px, 1fr)", show: (r) => r.by },
    ];
    const marks = [
      { title: "Took", num: true, width: "96px", value: (r) => r[1] - r[0], show: (r) => showNs(r[1] - r[0]) },
      { title: "At", num: true, width: "96px", value: (r) => r[0], show: (r) => showNs(r[0] - m.begin) },
      { title: "Name", width: "minmax(160px, 2fr)", value: (r) => r[2], show: (r) => r[2] },
      { title: "Goroutine", width: "minmax(160px, 2fr)", show: (r) => (r[3] === null ? m.thread(r[4]) : `${m.name(r[3])} (${m.g_id[r[3]]})`) },
      { title: "Task", num: true, width: "80px", value: (r) => r[5], show: (r) => (r[5] ? String(r[5]) : "") },
    ];
    const logs = [
      { title: "At", num: true, width: "96px", value: (r) => r[0], show: (r) => showNs(r[0] - m.begin) },
      { title: "Category", width: "140px", value: (r) => r[4], show: (r) => r[4] },
      { title: "Message", width: "minmax(200px, 3fr)", value: (r) => r[5], show: (r) => r[5] },
      { title: "Goroutine", width: "minmax(140px, 1fr)", show: (r) => (r[1] === null ? m.thread(r[2]) : `${m.name(r[1])} (${m.g_id[r[1]]})`) },
    ];
    const toSpan = (r) => this.go(r.goroutine, r.start, r.end);
    const toMark = (r) => {
      const pad = (r[1] - r[0]) * 0.2 + 500;
      this.timeline.show(r[0] - pad, r[1] + pad);
      if (r[3] !== null) this.timeline.select(r[3], -1);
    };
    const range = { length: m.ng, get: (i) => i };
    const isOn = (g) => g === this.timeline.selected;
    this.tabs = [
      ["Functions", s.functions, () => new VirtualTable(functions, s.functions, (r) => this.filter(r.name), { min: "1020px" })],
      ["Goroutines", range, () => new VirtualTable(goroutines, this.filtered || range, (g) => this.timeline.select(g, -1), { min: "1060px", isOn })],
      ["Hogs", s.hogs, () => new VirtualTable(notable(""), s.hogs, toSpan)],
      ["Latencies", s.slowest, () => new VirtualTable(notable("After"), s.slowest, toSpan)],
      ["Stalls", s.stalls, () => new VirtualTable(notable("Waited for"), s.stalls, toSpan)],
      ["Blocking calls", s.calls, () => new VirtualTable(notable(""), s.calls, toSpan)],
      ["Regions", m.regions, () => new VirtualTable(marks, m.regions, toMark)],
      ["Tasks", m.tasks, () => new VirtualTable(marks, m.tasks, toMark)],
      ["Logs", m.logs, () => new VirtualTable(logs, m.logs, (r) => {
        this.timeline.show(r[0] - 5e4, r[0] + 5e4);
        if (r[1] !== null) this.timeline.select(r[1], -1);
      })],
    ];
    $("tabs").replaceChildren(...this.tabs.map(([title, rows], i) =>
      make("button", { role: "tab", id: "tab-" + i, onclick: () => this.openTab(i) }, title, make("small", {}, showCount(rows.length)))));
    this.openTab(0);
  }

  openTab(i) {
    this.tab = i;
    [...$("tabs").children].forEach((b, k) => b.setAttribute("aria-selected", String(k === i)));
    this.table = this.tabs[i][2]();
    $("table").replaceChildren(this.table.node);
    this.table.fill();
  }

  // The goroutines whose name contains this, or whose id it is.
  filter(text) {
    const m = this.model, wanted = text.trim().toLowerCase();
    $("search").value = text;
    if (!wanted) this.filtered = null;
    else {
      const names = new Map(), found = [];
      for (let g = 0; g < m.ng; g++) {
        let hit = names.get(m.g_name[g]);
        if (hit === undefined || !m.g_name[g]) {
          hit = m.name(g).toLowerCase().includes(wanted);
          names.set(m.g_name[g], hit);
        }
        if (hit || String(m.g_id[g]) === wanted) found.push(g);
      }
      this.filtered = found;
    }
    this.openTab(1);
  }

  site(g) {
    const frame = this.model.stack(this.model.g_site[g])[0];
    return frame ? `${frame.func} (${frame.file}:${frame.line})` : "";
  }

  // To a moment in the life of a goroutine.
  go(g, start, end) {
    const m = this.model, row = m.rowOfGoroutine(g), k = Math.min(row.find((start + end) / 2), row.list.length - 1);
    const pad = Math.max((end - start) * 0.6, 1000);
    this.timeline.show(start - pad, end + pad);
    this.timeline.select(g, row.list[k]);
  }

  showDetails(g, span) {
    const panel = $("details"), m = this.model;
    if (this.tab === 1) this.table.fill();
    panel.hidden = g < 0;
    this.keepPlace();
    if (g < 0) {
      panel.replaceChildren();
      return;
    }
    const total = (s) => m.g_total[5 * g + s];
    const all = [RUNNING, SYSCALL, RUNNABLE, WAITING].map((s) => [s, total(s)]);
    const sum = all.reduce((a, [, ns]) => a + ns, 0) || 1;
    const parent = this.byId(m.g_parent[g], m.g_run[g]);
    const head = make("div", { class: "head" },
      make("button", { class: "close", title: "Close (Esc)", onclick: () => this.timeline.select(-1, -1) }, "×"),
      make("h2", { id: "g-name" }, m.name(g)),
      make("div", { class: "sub" }, `goroutine ${m.g_id[g]}` + (m.g_flags[g] & 1 ? ", a plain function" : "") + ", ",
        m.g_ended[g] >= 0 ? `${m.ends[m.g_end[g]]} after ${showNs(m.g_ended[g] - Math.max(m.g_created[g], m.begin))}` : "alive at the end"),
      make("div", { class: "sub" }, "created at " + (this.site(g) || "?"),
        parent >= 0 ? make("span", {}, " by ", this.link(parent)) : null),
      make("div", { class: "bar" }, ...all.map(([s, ns]) => make("i", { style: { width: (100 * ns) / sum + "%", background: `var(${STATE_VARS[s]})` } }))),
      make("div", { class: "legend" }, ...all.flatMap(([s, ns]) => [
        make("i", { class: "dot", style: { background: `var(${STATE_VARS[s]})` } }),
        make("span", {}, STATE_NAMES[s]), make("span", { class: "num", "data-state": STATE_NAMES[s] }, showNs(ns))])));
    const now = make("div", { class: "now" });
    if (span >= 0) this.describeSpan(now, span);
    else now.append(make("div", { class: "sub" }, "Click one of its slices, or a line below."));
    const first = m.gFirst[g], n = m.gFirst[g + 1] - first;
    const rows = { length: n, get: (k) => m.gSpans[first + k] };
    const life = new VirtualTable([
      { title: "At", num: true, width: "84px", value: (i) => m.span_start[i], show: (i) => showNs(m.span_start[i] - m.begin) },
      { title: "State", width: "1fr", value: (i) => m.span_state[i], show: (i) => make("span", {}, make("i", { class: "dot", style: { background: `var(${STATE_VARS[m.span_state[i]]})` } }), " " + (m.reason(i) || STATE_NAMES[m.span_state[i]])) },
      { title: "Took", num: true, width: "84px", value: (i) => m.span_end[i] - m.span_start[i], show: (i) => showNs(m.span_end[i] - m.span_start[i]) },
    ], rows, (i) => this.visit(i), { isOn: (i) => i === this.timeline.span });
    panel.replaceChildren(head, now, make("div", { class: "life" }, make("h3", {}, `Its life: ${showCount(n)} spans`), life.node));
    if (span >= 0) life.reveal(m.spanAt[span] - first);
    else life.fill();
  }

  describeSpan(into, i) {
    const m = this.model, state = m.span_state[i], why = m.reason(i);
    const took = showNs(m.span_end[i] - m.span_start[i]);
    const title = `${STATE_NAMES[state]}${why ? ": " + why : ""}`;
    into.append(make("h3", { id: "span-title" }, `${title}, ${took} at ${showNs(m.span_start[i] - m.begin)}`));
    if (state === RUNNING) into.append(make("div", { class: "sub" }, `on P${m.span_p[i]}, thread ${m.thread(m.span_thread[i])}`));
    if (state === SYSCALL) into.append(make("div", { class: "sub" }, `on thread ${m.thread(m.span_thread[i])}, without a P: it blocked, or ran for too long`));
    const before = m.before(i), after = m.after(i);
    if (state === WAITING && after >= 0 && m.span_by[after]) {
      into.append(make("div", { class: "sub", id: "woken-by" }, "woken by ", this.link(m.span_by[after] - 1, m.span_start[after])));
    } else if (state === WAITING && after >= 0) {
      into.append(make("div", { class: "sub", id: "woken-by" }, why === "sleep" ? "woken by its timer" : "woken by the runtime or another thread"));
    }
    if (state === RUNNABLE && m.span_by[i]) {
      const created = m.g_created[m.span_g[i]] === m.span_start[i];
      into.append(make("div", { class: "sub", id: "woken-by" }, created ? "created by " : "woken by ", this.link(m.span_by[i] - 1, m.span_start[i])));
    }
    if (state === RUNNING && before >= 0 && m.span_state[before] === RUNNABLE) {
      into.append(make("div", { class: "sub" }, `after ${showNs(m.span_end[before] - m.span_start[before])} ready to run`));
    }
    const holder = state === WAITING ? i : after >= 0 && m.span_state[after] === WAITING ? after : -1;
    const frames = holder >= 0 ? m.stack(m.span_stack[holder]) : [];
    if (frames.length) {
      into.append(make("h3", { style: { marginTop: "9px" } }, state === WAITING ? "Where it waits" : "Where it waits next"));
      for (const f of frames) into.append(make("div", { class: "frame" }, f.func + " ", make("span", {}, `${f.file}:${f.line}`)));
    }
  }

  link(g, time) {
    const m = this.model;
    return make("button", { class: "linkish", onclick: () => {
      if (time === undefined) this.timeline.select(g, -1);
      else this.go(g, time, time + 1);
    } }, `${m.name(g)} (${m.g_id[g]})`);
  }

  byId(id, run) {
    const m = this.model;
    if (!this.ids) {
      this.ids = new Map();
      for (let g = 0; g < m.ng; g++) this.ids.set(m.g_run[g] + ":" + m.g_id[g], g);
    }
    const found = this.ids.get(run + ":" + id);
    return found === undefined ? -1 : found;
  }

  visit(i) {
    const m = this.model, view = this.timeline.view;
    if (m.span_end[i] < view.from || m.span_start[i] > view.to) this.timeline.reveal(i, false);
    else this.timeline.select(m.span_g[i], i);
  }

  step(by) {
    const t = this.timeline, m = this.model;
    if (t.selected < 0) return;
    let i = t.span;
    if (i < 0) i = m.gSpans[m.gFirst[t.selected]];
    else i = by > 0 ? m.after(i) : m.before(i);
    if (i >= 0) this.visit(i);
  }

  // The place in the address bar, so that it can be kept and sent.
  keepPlace() {
    clearTimeout(this.placeTimer);
    this.placeTimer = setTimeout(() => {
      const { view, selected } = this.timeline;
      const g = selected >= 0 ? `&g=${selected}` : "";
      history.replaceState(null, "", `#t=${Math.round(view.from)},${Math.round(view.to)}${g}`);
    }, 250);
  }

  fromHash() {
    const found = /^#t=(-?\d+),(-?\d+)(?:&g=(\d+))?$/.exec(location.hash);
    if (!found) return;
    this.timeline.show(Number(found[1]), Number(found[2]));
    if (found[3] !== undefined && Number(found[3]) < this.model.ng) this.timeline.select(Number(found[3]), -1);
  }

  listen() {
    const t = this.timeline;
    $("zoom-in").addEventListener("click", () => t.zoom(0.5));
    $("zoom-out").addEventListener("click", () => t.zoom(2));
    $("zoom-all").addEventListener("click", () => t.show(t.all.from, t.all.to));
    $("help-button").addEventListener("click", () => $("help").showModal());
    let typing = 0;
    $("search").addEventListener("input", (e) => {
      clearTimeout(typing);
      typing = setTimeout(() => {
        this.filter(e.target.value);
        $("search").focus();
      }, 150);
    });
    $("search").addEventListener("keydown", (e) => {
      if (e.key === "Enter" && this.filtered && this.filtered.length) t.select(this.filtered[0], -1);
    });
    document.addEventListener("keydown", (e) => this.key(e));
    const splitter = $("splitter");
    splitter.addEventListener("pointerdown", (e) => splitter.setPointerCapture(e.pointerId));
    splitter.addEventListener("pointermove", (e) => {
      if (!e.buttons) return;
      const height = Math.min(Math.max(innerHeight - e.clientY, 80), innerHeight - 240);
      document.querySelector("main").style.setProperty("--lower", height + "px");
    });
  }

  key(e) {
    const t = this.timeline;
    if (e.target.tagName === "INPUT") {
      if (e.key === "Escape") e.target.blur();
      return;
    }
    if (e.ctrlKey || e.metaKey || e.altKey || $("help").open) return;
    const keys = {
      w: () => t.zoom(0.7), s: () => t.zoom(1.4), "+": () => t.zoom(0.7), "=": () => t.zoom(0.7), "-": () => t.zoom(1.4),
      a: () => t.pan(-t.plot / 5), d: () => t.pan(t.plot / 5), ArrowLeft: () => t.pan(-t.plot / 8), ArrowRight: () => t.pan(t.plot / 8),
      0: () => t.show(t.all.from, t.all.to), "?": () => $("help").showModal(), Escape: () => t.select(-1, -1),
      "[": () => this.step(-1), "]": () => this.step(1), "/": () => $("search").focus(),
    };
    const action = keys[e.key.length === 1 ? e.key.toLowerCase() : e.key];
    if (action) {
      e.preventDefault();
      action();
    }
  }
}

async function main() {
  const begun = performance.now();
  try {
    const response = await fetch("data");
    if (!response.ok) throw new Error(`the server says ${response.status}`);
    window.viewer = new Viewer(new Model(await response.arrayBuffer()));
    $("loading").remove();
    window.viewer.openedIn = performance.now() - begun;
  } catch (error) {
    $("loading").className = "failed";
    $("loading").textContent = "The trace could not be shown.\n" + error;
    throw error;
  }
}

main();
