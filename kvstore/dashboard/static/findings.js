// Prompts that break off early. Text of prompts is only ever shown as text.
// data: JSON {rows: [{id, title, sub, cost, advice, texts: {ours: [head, differs, tail], cached: [...]}}], empty}
export default {
  template: `
  <div>
    <p v-if="!view.rows.length" class="kv-empty">{{ view.empty }}</p>
    <ul v-else class="kv-findings">
      <li v-for="each in view.rows" :key="each.id">
        <p class="kv-name">{{ each.title }}</p>
        <p><b>{{ each.cost }}</b> <span class="kv-soft">{{ each.sub }}</span></p>
        <div v-if="each.texts" class="kv-diff">
          <p v-for="(side, name) in each.texts" :key="name"><span class="kv-soft">{{ name === 'ours' ? 'one' : 'other' }}</span><code>{{ side[0] }}<mark>{{ side[1] }}</mark>{{ side[2] }}</code></p>
        </div>
        <p>{{ each.advice }}</p>
      </li>
    </ul>
  </div>`,
  props: { data: String },
  computed: {
    view() {
      return Object.freeze(JSON.parse(this.data));
    },
  },
};
