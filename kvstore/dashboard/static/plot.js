// What the charts have in common: Apache ECharts, as NiceGUI ships it, fetched when the page is there already; drawn
// anew with each `data`, another width and another look; arrow keys; and the numbers as a table.
const HEIGHT = 208;
let library = null; // one for all charts

const fetched = () => (library ??= import("nicegui-echart").then((module) => module.echarts));
const wants = (query) => window.matchMedia(query);
const dark = wants("(prefers-color-scheme: dark)");
const contrast = wants("(prefers-contrast: more)");

// The page's colours: a function from a variable's name; a quiet one where there is no such variable.
function palette() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  return (name) => of(name) || of("soft");
}

// What a tooltip shows. As nodes: names come from clients, and are no HTML.
export function tip(title, rows) {
  const box = document.createElement("div");
  box.className = "kv-tip";
  box.append(Object.assign(document.createElement("b"), { textContent: title }));
  for (const { colour, name, text } of rows) {
    const line = document.createElement("span");
    if (colour) line.append(Object.assign(document.createElement("i"), { style: `background:${colour}` }));
    line.append(name, Object.assign(document.createElement("em"), { textContent: text }));
    box.append(line);
  }
  return box;
}

// What axes look like. more: of this one.
export const axis = (colour, more) => ({
  axisTick: { show: false },
  axisLine: { show: false },
  splitLine: { show: false },
  ...more,
  axisLabel: { color: colour("soft"), fontSize: 11.5, hideOverlap: true, ...more.axisLabel },
});

const shared = (colour, said) => ({
  animation: false,
  textStyle: { fontFamily: getComputedStyle(document.body).fontFamily },
  aria: { enabled: true, label: { description: said }, decal: { show: contrast.matches } },
  tooltip: {
    trigger: "axis",
    confine: true,
    transitionDuration: 0,
    padding: [8, 10],
    backgroundColor: colour("card"),
    borderColor: colour("line"),
    borderWidth: 1,
    textStyle: { color: colour("ink"), fontSize: 12.5 },
  },
});

// A component. isEmpty(view), said(view): words for who cannot see it; places(view): how many the arrow keys go through;
// option(view, colour, width): ECharts' own; head: HTML above it, foot: below it; table(view): {columns, rows}, of texts.
export const chart = ({ head, foot, isEmpty, said, places, option, table, methods }) => ({
  template: `
  <figure class="kv-chart">
    <p v-if="isEmpty" class="kv-empty">{{ view.empty }}</p>
    <template v-else>
      ${head}
      <div class="kv-plot" ref="plot" tabindex="0" role="img" :aria-label="said" @keydown="move" @blur="hide">
        <p v-if="failed" class="kv-empty">The chart could not be loaded; the numbers are below.</p>
      </div>
      ${foot}
      <details class="kv-numbers" @toggle="listed = $event.target.open">
        <summary>As a table</summary>
        <div v-if="listed" class="kv-scroll" tabindex="0" role="region" aria-label="As a table">
          <table class="kv-table">
            <thead><tr><th v-for="(name, i) in table.columns" :key="i" :class="{'kv-number': i}">{{ name }}</th></tr></thead>
            <tbody><tr v-for="row in table.rows" :key="row[0]"><td v-for="(text, i) in row" :key="i" :class="{'kv-number': i}">{{ text }}</td></tr></tbody>
          </table>
        </div>
      </details>
    </template>
  </figure>`,
  props: { data: String },
  data: () => ({ failed: false, listed: false }),
  created() {
    this.chart = this.echarts = null; // not for Vue to watch
    this.cursor = null;
  },
  async mounted() {
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.$el);
    this.looks = new MutationObserver(this.recolour);
    this.looks.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    for (const each of [dark, contrast]) each.addEventListener("change", this.recolour);
    try {
      this.echarts = await fetched();
      this.draw();
    } catch {
      this.failed = true;
    }
  },
  beforeUnmount() {
    this.sizes.disconnect();
    this.looks.disconnect();
    for (const each of [dark, contrast]) each.removeEventListener("change", this.recolour);
    this.chart?.dispose();
    this.echarts = null;
  },
  watch: {
    data: { handler: "draw", flush: "post" },
  },
  computed: {
    view() {
      return Object.freeze(JSON.parse(this.data));
    },
    isEmpty() {
      return isEmpty(this.view);
    },
    said() {
      return said(this.view);
    },
    table() {
      return table(this.view);
    },
  },
  methods: {
    ...methods,
    draw() {
      const box = this.$refs.plot;
      if (this.chart && this.chart.getDom() !== box) {
        this.chart.dispose();
        this.chart = null;
      }
      if (!this.echarts || !box?.clientWidth) return;
      this.chart ??= this.echarts.init(box, null, { renderer: "svg", height: HEIGHT });
      if (this.chart.getWidth() !== box.clientWidth) this.chart.resize({ width: box.clientWidth });
      const colour = palette();
      const own = shared(colour, this.said);
      const more = option(this.view, colour, box.clientWidth);
      this.chart.setOption({ ...own, ...more, tooltip: { ...own.tooltip, ...more.tooltip } }, { replaceMerge: ["series"] });
    },
    move(event) {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") this.hide();
      if (!by || !this.chart) return;
      event.preventDefault();
      const count = places(this.view);
      this.cursor = Math.min(Math.max((this.cursor ?? (by > 0 ? -1 : count)) + by, 0), count - 1);
      this.chart.dispatchAction({ type: "showTip", seriesIndex: 0, dataIndex: this.cursor });
    },
    recolour() {
      this.hide();
      this.draw();
    },
    hide() {
      this.cursor = null;
      this.chart?.dispatchAction({ type: "hideTip" });
    },
  },
});
