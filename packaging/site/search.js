// An option is searched by its name: the search engine takes a leading "-" for "without this word".
(() => {
  const bare = (text) => text.replace(/(^|\s)-+/g, "$1");
  const asked = new URL(location);
  if (asked.searchParams.has("q")) {
    asked.searchParams.set("q", bare(asked.searchParams.get("q")));
    history.replaceState(history.state, "", asked);
  }
  for (const event of ["input", "keyup"]) {
    document.addEventListener(event, ({ target }) => {
      if (target.matches("[data-md-component=search-query]") && target.value !== bare(target.value)) {
        target.value = bare(target.value);
      }
    }, true);
  }
})();
