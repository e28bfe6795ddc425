// A table. A click on a row, or Enter on its button, emits "open" with the row's id; on a heading it sorts.
// data: JSON {columns: [{id, name, kind, wide}], rows: [{id, COLUMN: {text, sub, order, share, mix, marks, code, tone, at}}], now, note, trouble, empty}
export default {
  template: `
  <div>
    <p v-if="view.trouble" class="kv-trouble" role="status">{{ view.trouble }}</p>
    <p v-if="!view.rows.length" class="kv-empty">{{ view.empty }}</p>
    <div v-else class="kv-scroll"><table class="kv-table">
      <thead><tr>
        <th v-for="column in view.columns" :key="column.id" :class="classes(column)" scope="col" :aria-sort="sorted(column)">
          <button v-if="column.kind !== 'mix'" type="button" @click="sortBy(column)">{{ column.name }}<span aria-hidden="true">{{ arrow(column) }}</span></button>
          <template v-else>{{ column.name }}</template>
        </th>
      </tr></thead>
      <tbody><tr v-for="row in shown" :key="row.id" :data-row="row.id" :class="{ 'kv-opens': opens }" @click="open(row)">
        <td v-for="column in view.columns" :key="column.id" :class="[...classes(column), row[column.id].tone ? 'kv-' + row[column.id].tone : '']">
          <template v-if="column.kind === 'mix'"><span class="kv-mix" role="img" :aria-label="told(row[column.id].mix)" :title="told(row[column.id].mix)"><i v-for="part in row[column.id].mix" :key="part.tier" :style="{flexGrow: part.share, background: 'var(--' + part.tier + ', var(--soft))'}"></i></span></template>
          <template v-else>
            <button v-if="column.kind === 'open'" type="button" class="kv-open" :class="{ 'kv-code': row[column.id].code }" :title="row[column.id].text" @click.stop="open(row)">{{ row[column.id].text }}</button>
            <span v-else-if="column.kind === 'state'" class="kv-pill">{{ row[column.id].text }}</span>
            <span v-else-if="column.kind === 'ago'">{{ ago(row[column.id].at) }}</span>
            <span v-else>{{ row[column.id].text }}</span>
            <span v-for="mark in row[column.id].marks" :key="mark" class="kv-chip">{{ mark }}</span>
            <span v-if="row[column.id].sub" class="kv-soft kv-under">{{ row[column.id].sub }}</span>
            <span v-if="column.kind === 'meter' && row[column.id].share !== null" class="kv-track"><span class="kv-fill kv-dram" :style="{width: Math.min(row[column.id].share, 1) * 100 + '%'}"></span></span>
          </template>
        </td>
      </tr></tbody>
    </table></div>
    <p v-if="view.note || rows.length > most" class="kv-note kv-row">{{ view.note }}
      <b v-if="rows.length > most"><button type="button" class="kv-more" :aria-expanded="all" @click="all = !all">{{ all ? "Show fewer" : "Show " + (rows.length - most) + " more" }}</button></b>
    </p>
  </div>`,
  props: { data: String, opens: Boolean, most: { type: Number, default: 10 } },
  emits: ["open"],
  data: () => ({ by: null, down: true, all: false, now: 0, ahead: 0 }),
  mounted() {
    this.tick();
    this.timer = setInterval(this.tick, 1000);
  },
  beforeUnmount() {
    clearInterval(this.timer);
  },
  watch: {
    view: {
      immediate: true,
      handler(view) {
        if (view.now) this.ahead = Date.now() / 1e3 - view.now; // this clock's, of the node's
        this.tick();
      },
    },
  },
  computed: {
    view() {
      return Object.freeze(JSON.parse(this.data || '{"columns":[],"rows":[]}'));
    },
    shown() {
      return this.all ? this.rows : this.rows.slice(0, this.most);
    },
    rows() {
      if (this.by === null) return this.view.rows;
      const key = (row) => row[this.by].order ?? row[this.by].text;
      const compare = (a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b)));
      return [...this.view.rows].sort((a, b) => (this.down ? -1 : 1) * compare(key(a), key(b)));
    },
  },
  methods: {
    tick() {
      this.now = Date.now() / 1e3 - this.ahead;
    },
    ago(at) {
      const gone = this.now - at;
      const [by, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([each]) => gone >= each) ?? [1, ""];
      return unit ? `${Math.floor(gone / by)} ${unit}` : "now";
    },
    classes: (column) => [column.kind === "number" || column.kind === "ago" ? "kv-number" : "", column.wide ? "kv-wide" : "", `kv-col-${column.id}`],
    sorted(column) {
      return this.by === column.id ? (this.down ? "descending" : "ascending") : undefined;
    },
    arrow(column) {
      return this.by === column.id ? (this.down ? " ↓" : " ↑") : "";
    },
    sortBy(column) {
      if (this.by === column.id && !this.down) this.by = null; // the third click: as it came
      else if (this.by === column.id) this.down = false;
      else [this.by, this.down] = [column.id, true];
    },
    told: (mix) => mix.map((each) => `${each.name} ${Math.round(each.share * 100)} %`).join(", ") || "nowhere",
    open(row) {
      if (this.opens) this.$emit("open", row.id);
    },
  },
};
