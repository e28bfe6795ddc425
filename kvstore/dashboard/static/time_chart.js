// A chart over time: stacked columns (how much of what), or dots on a logarithmic scale (how long).
// data: JSON {kind: "columns" | "dots", unit, start, width, count, series: [{id, name, values}], summary, empty}
import { axis, chart, tip } from "plot";

const VARIABLES = { hit: "dram", miss: "computed" };
const NICE_S = [60, 120, 180, 300, 900, 1800, 3600, 7200, 14400, 21600];

const short = (n) =>
  n >= 1e6 ? `${+(n / 1e6).toFixed(1)}M` : n >= 1e3 ? `${+(n / 1e3).toFixed(1)}k` : `${+n.toFixed(1)}`;
const seconds = (s) => (s < 1 ? `${+(s * 1e3).toPrecision(3)} ms` : `${+s.toPrecision(3)} s`);
const clock = (unix, precise) =>
  new Date(unix * 1e3).toLocaleTimeString([], {
    hour: "2-digit",
    minute: "2-digit",
    hourCycle: "h23",
    ...(precise ? { second: "2-digit" } : {}),
  });

const variable = (id) => VARIABLES[id] ?? id;
const when = (view, i) => clock(view.start + i * view.width, view.width < 60);
const words = (view, value) => (view.kind === "columns" ? `${short(value)} ${view.unit}` : seconds(value));
const told = (view, i) => view.series.filter((each) => each.values[i]).map((each) => ({ id: each.id, name: each.name, text: words(view, each.values[i]) }));

// Labels at whole minutes or hours, as many as there is room for: the clock of those columns, "" for the others.
function labels(view, width) {
  const fits = Math.max(Math.floor(width / 90), 2);
  const apart = NICE_S.find((each) => (view.width * view.count) / each <= fits) ?? NICE_S.at(-1);
  return Array.from({ length: view.count }, (_, i) => {
    const at = Math.ceil((view.start + i * view.width) / apart - 1e-9) * apart;
    return at < view.start + (i + 1) * view.width - 1e-6 ? clock(at) : "";
  });
}

function drawn(view, each, colour) {
  const own = { id: each.id, name: each.name, data: each.values, color: colour(variable(each.id)), emphasis: { disabled: true } };
  if (view.kind === "columns") return { ...own, type: "bar", stack: "all", barCategoryGap: "14%" };
  return { ...own, type: "line", connectNulls: true, symbol: "circle", symbolSize: 6, showAllSymbol: true, lineStyle: { width: 1.5, opacity: 0.35 } };
}

function yAxis(view, colour) {
  const lines = { show: true, lineStyle: { color: colour("line") } };
  if (view.kind === "columns") return axis(colour, { type: "value", min: 0, splitNumber: 4, splitLine: lines, axisLabel: { formatter: short } });
  const known = view.series.flatMap((each) => each.values.filter((value) => value > 0));
  const low = Math.floor(Math.log10(Math.min(...known)));
  const high = Math.max(Math.ceil(Math.log10(Math.max(...known))), low + 1);
  return axis(colour, { type: "log", min: 10 ** low, max: 10 ** high, splitLine: lines, axisLabel: { formatter: seconds } });
}

export default chart({
  head: `
  <figcaption class="kv-legend">
    <span v-for="each in view.series" :key="each.id"><i :style="{background: colour(each.id)}"></i>{{ each.name }}</span>
  </figcaption>`,
  foot: "",
  methods: { colour: (id) => `var(--${variable(id)}, var(--soft))` },
  isEmpty: (view) => !view.series.length,
  said(view) {
    const last = Math.max(...view.series.map((each) => each.values.findLastIndex(Boolean)));
    return `${view.summary} At ${when(view, last)}: ${told(view, last).map((each) => `${each.name} ${each.text}`).join(", ")}.`;
  },
  places: (view) => view.count,
  table(view) {
    const rows = Array.from({ length: view.count }, (_, i) => view.count - 1 - i) // newest first
      .filter((i) => view.series.some((each) => each.values[i]))
      .map((i) => [when(view, i), ...view.series.map((each) => (each.values[i] ? words(view, each.values[i]) : "–"))]);
    return { columns: ["Time", ...view.series.map((each) => each.name)], rows };
  },
  option(view, colour, width) {
    const shown = labels(view, width);
    return {
      grid: { left: 54, right: 8, top: 10, bottom: 22, outerBoundsMode: "none" },
      xAxis: axis(colour, {
        type: "category",
        data: shown.map((_, i) => i),
        axisLabel: { interval: (i) => Boolean(shown[i]), formatter: (i) => shown[i], hideOverlap: false },
      }),
      yAxis: yAxis(view, colour),
      series: view.series.map((each) => drawn(view, each, colour)),
      tooltip: {
        axisPointer: { type: "shadow", shadowStyle: { color: colour("ink"), opacity: 0.07 } },
        formatter([{ dataIndex }]) {
          const rows = told(view, dataIndex).reverse().map((each) => ({ ...each, colour: colour(variable(each.id)) }));
          return tip(when(view, dataIndex), rows.length ? rows : [{ name: "nothing", text: "" }]);
        },
      },
    };
  },
});
