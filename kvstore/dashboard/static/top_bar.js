// The bar on top: which node this is, how it is, and what concerns the whole page.
// data: JSON {node, version, state, tone, up, beat, window, windows}
const LATE_S = 5;
const THEMES = { auto: "As the system", light: "Light", dark: "Dark" };

export default {
  template: `
  <header class="kv-bar">
    <svg width="30" height="21" viewBox="0 0 40 28" aria-hidden="true"><path fill="var(--hbm)" d="M0 0h14v8H0z"/><path fill="var(--dram)" d="M0 10h26v8H0z"/><path fill="var(--nvme)" d="M0 20h40v8H0z"/></svg>
    <h1>kvterrace<span v-if="view.node"> · {{ view.node }}</span></h1>
    <span :class="'kv-pill kv-' + (late ? 'bad' : view.tone)" role="status">{{ late ? 'no news for ' + late + ' s' : view.state }}</span>
    <span class="kv-soft kv-up">{{ view.version }} · up {{ view.up }}</span>
    <span class="kv-spring"></span>
    <div class="kv-switch" role="group" aria-label="Time shown">
      <button v-for="each in view.windows" :key="each" type="button" :aria-pressed="each === view.window" @click="$emit('window', each)">{{ each }}</button>
    </div>
    <details class="kv-menu" ref="menu" @keydown.escape="shut" @focusout="left">
      <summary aria-label="Menu"><span aria-hidden="true">☰</span></summary>
      <div>
        <p v-if="who" class="kv-soft">{{ who }}</p>
        <fieldset><legend>Look</legend>
          <label v-for="(name, each) in themes" :key="each"><input type="radio" name="kv-theme" :value="each" v-model="theme" />{{ name }}</label>
        </fieldset>
        <template v-if="mayChange">
          <button type="button" @click="act('drain')">Drain this node…</button>
          <button type="button" class="kv-danger" @click="act('clear')">Clear everything…</button>
        </template>
        <p v-else class="kv-soft">Changing something takes the role operator.</p>
        <template v-if="whole"><a href="/metrics">Metrics</a><a href="/status.json">Status as JSON</a></template>
        <form v-if="signsOut" method="post" action="/logout"><button>Sign out</button></form>
      </div>
    </details>
  </header>`,
  props: { data: String, who: String, mayChange: Boolean, signsOut: Boolean, whole: Boolean },
  emits: ["window", "act", "look"],
  data() {
    return { themes: THEMES, theme: document.documentElement.dataset.theme ?? "auto", heard: performance.now(), late: 0 };
  },
  mounted() {
    this.timer = setInterval(() => {
      const gone = Math.floor((performance.now() - this.heard) / 1e3);
      this.late = gone >= LATE_S && !document.hidden ? gone : 0;
    }, 1000);
    document.addEventListener("visibilitychange", this.look);
  },
  beforeUnmount() {
    clearInterval(this.timer);
    document.removeEventListener("visibilitychange", this.look);
  },
  computed: {
    view() {
      return Object.freeze(JSON.parse(this.data));
    },
  },
  watch: {
    data() {
      this.heard = performance.now();
      this.late = 0;
    },
    theme(theme) {
      if (theme === "auto") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = theme;
      try {
        localStorage.setItem("kvterrace-theme", theme);
      } catch {} // where nothing may be stored, it holds for this page
    },
  },
  methods: {
    look() {
      this.heard = performance.now();
      this.$emit("look", !document.hidden);
    },
    act(id) {
      this.shut();
      this.$emit("act", id);
    },
    shut() {
      this.$refs.menu.open = false;
    },
    left(event) {
      if (event.relatedTarget && !this.$refs.menu.contains(event.relatedTarget)) this.shut();
    },
  },
};
