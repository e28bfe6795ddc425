// The figures on top of the page.
// data: JSON {reuse: {value, label, sub, mix: [{tier, name, share, tokens}]}, others: [{id, value, label, sub, how}]}
export default {
  template: `
  <div class="kv-figures">
    <div class="kv-hero">
      <p class="kv-big"><strong>{{ view.reuse.value }}</strong> <span>{{ view.reuse.label }}</span></p>
      <p class="kv-sub">{{ view.reuse.sub }}</p>
      <div class="kv-terrace" role="img" :aria-label="said">
        <div v-for="each in view.reuse.mix" :key="each.tier" :class="'kv-step kv-' + each.tier"
          :style="{flexGrow: each.share}" :title="each.name + ': ' + percent(each.share)"></div>
        <div v-if="!view.reuse.mix.length" class="kv-step kv-none"></div>
      </div>
      <p class="kv-legend">
        <span v-for="each in view.reuse.mix" :key="each.tier"><i :style="{background: 'var(--' + each.tier + ', var(--soft))'}"></i>{{ each.name }} <b>{{ percent(each.share) }}</b></span>
      </p>
    </div>
    <dl class="kv-others">
      <div v-for="each in view.others" :key="each.id" :data-figure="each.id" :title="each.how">
        <dt>{{ each.label }}</dt><dd class="kv-value">{{ each.value }}</dd><dd class="kv-sub">{{ each.sub }}</dd>
      </div>
    </dl>
  </div>`,
  props: { data: String },
  computed: {
    view() {
      return Object.freeze(JSON.parse(this.data));
    },
    said() {
      return this.view.reuse.mix.map((each) => `${each.name} ${this.percent(each.share)}`).join(", ");
    },
  },
  methods: {
    percent: (share) => (share > 0 && share < 0.01 ? "< 1 %" : `${Math.round(share * 100)} %`),
  },
};
