// Rows with a bar each: tiers, or reasons.
// data: JSON {rows: [{id, label, hint, tier, share, text, sub, facts: [[name, value]], trouble}], foot: [[name, value]], empty}
export default {
  template: `
  <div>
    <p v-if="!view.rows.length" class="kv-empty">{{ view.empty }}</p>
    <ul v-else class="kv-bars">
      <li v-for="each in view.rows" :key="each.id" :data-row="each.id">
        <div class="kv-row"><span class="kv-name">{{ each.label }}</span><span class="kv-soft" v-if="each.sub">{{ each.sub }}</span><b>{{ each.text }}</b></div>
        <div v-if="each.share !== null" class="kv-track"><div :class="['kv-fill', each.tier ? 'kv-' + each.tier : 'kv-computed']" :style="{width: Math.max(each.share * 100, each.share > 0 ? 0.6 : 0) + '%'}"></div></div>
        <p v-if="each.trouble" class="kv-trouble">{{ each.trouble }}</p>
        <p v-if="each.hint" class="kv-soft">{{ each.hint }}</p>
        <p v-if="each.facts" class="kv-facts"><span v-for="fact in each.facts" :key="fact[0]">{{ fact[0] }} <b>{{ fact[1] }}</b></span></p>
      </li>
    </ul>
    <p v-if="view.foot" class="kv-facts kv-foot"><span v-for="fact in view.foot" :key="fact[0]">{{ fact[0] }} <b>{{ fact[1] }}</b></span></p>
  </div>`,
  props: { data: String },
  computed: {
    view() {
      return Object.freeze(JSON.parse(this.data));
    },
  },
};
