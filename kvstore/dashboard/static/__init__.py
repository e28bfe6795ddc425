"""What the browser draws the page with: Vue components, each of which gets its data as JSON, and the look."""
