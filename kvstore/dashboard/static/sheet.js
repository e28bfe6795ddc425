// A drawer that says more of one thing and lets it be changed. The browser's own dialog: Escape closes it, the keyboard
// stays within, and where one was gets the focus back.
// data: "" = closed, or JSON {title, quote, lead: [text], mix, groups: [{title, rows: [[name, value]]}], acts: [{id, name, tone}], note, said, failed}
export default {
  template: `
  <dialog ref="box" class="kv-sheet" aria-labelledby="kv-sheet-title" @close="shut" @click.self="$refs.box.close()">
    <div v-if="view" class="kv-sheet-body">
      <header><h2 id="kv-sheet-title" tabindex="-1" autofocus>{{ view.title }}</h2><button type="button" class="kv-quiet" aria-label="Close" @click="$refs.box.close()">✕</button></header>
      <p v-if="view.said" :class="['kv-said', view.failed ? 'kv-bad' : 'kv-good']" role="status">{{ view.said }}</p>
      <p v-for="line in view.lead" :key="line" class="kv-lead"><template v-for="(part, i) in pieces(line)" :key="i"><code v-if="i % 2">{{ part }}</code><template v-else>{{ part }}</template></template></p>
      <div v-if="view.mix && view.mix.length" class="kv-mix kv-thick"><i v-for="part in view.mix" :key="part.tier" :title="part.name" :style="{flexGrow: part.share, background: 'var(--' + part.tier + ', var(--soft))'}"></i></div>
      <blockquote v-if="view.quote">{{ view.quote }}</blockquote>
      <section v-for="(group, i) in view.groups" :key="i">
        <h3 v-if="group.title">{{ group.title }}</h3>
        <dl><template v-for="row in group.rows" :key="row[0]"><dt>{{ row[0] }}</dt><dd>{{ row[1] }}</dd></template></dl>
      </section>
      <p v-if="view.note" class="kv-note">{{ view.note }}</p>
      <footer v-if="view.acts && view.acts.length">
        <button v-for="act in view.acts" :key="act.id" type="button" :class="'kv-act kv-act-' + (act.tone || 'plain')" :data-act="act.id" :disabled="waits" @click="doIt(act.id)">{{ act.name }}</button>
      </footer>
    </div>
  </dialog>`,
  props: { data: String },
  emits: ["act", "shut"],
  data: () => ({ waits: false }),
  computed: {
    view() {
      return this.data ? Object.freeze(JSON.parse(this.data)) : null;
    },
  },
  watch: {
    data() {
      this.waits = false;
      this.$nextTick(() => {
        if (this.view && !this.$refs.box.open) this.$refs.box.showModal();
        if (!this.view && this.$refs.box.open) this.$refs.box.close();
      });
    },
  },
  methods: {
    pieces: (line) => line.split("`"), // every other one is something to type
    doIt(id) {
      this.waits = true; // until an answer comes: nobody clears twice by a double click
      this.$emit("act", id);
    },
    shut() {
      if (this.data) this.$emit("shut");
    },
  },
};
