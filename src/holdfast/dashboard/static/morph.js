// Make one element like another with as few changes as possible. Children that carry data-key are told apart by it;
// one with data-keep keeps its text; what a person opened (details) or typed stays.

function attributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    const own = name === "open" && old.tagName === "DETAILS";
    if (!fresh.hasAttribute(name) && !own) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    const focus = name === "tabindex" && old.matches(".timeline a") && old.parentNode.contains(document.activeElement);
    if (old.getAttribute(name) !== value && !focus) old.setAttribute(name, value);
  }
}

const key = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null);
const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && key(a) === key(b);

export function morph(old, fresh) {
  if (old.nodeName === "DIALOG" || (old.hasAttribute("data-keep") && old.id === fresh.id)) return;
  attributes(old, fresh);
  const wanted = new Set([...fresh.children].map(key));
  const keyed = new Map();
  for (const child of [...old.children]) {
    if (key(child) === null) continue;
    if (wanted.has(key(child))) keyed.set(key(child), child);
    else child.remove();
  }
  let place = old.firstChild;
  function drop() {
    const gone = place;
    place = place.nextSibling;
    gone.remove();
  }
  for (const next of [...fresh.childNodes]) {
    const known = key(next) === null ? undefined : keyed.get(key(next));
    // Blanks that stood around one that is gone: moving the others instead would take the focus from them.
    while (known && place && place !== known && key(place) === null) drop();
    if (known) {
      if (known === place) place = place.nextSibling;
      else old.insertBefore(known, place);
      morph(known, next);
    } else if (place && alike(place, next)) {
      const same = place;
      place = place.nextSibling;
      if (same.nodeType === Node.ELEMENT_NODE) morph(same, next);
      else if (same.nodeValue !== next.nodeValue) same.nodeValue = next.nodeValue;
    } else {
      old.insertBefore(document.importNode(next, true), place);
    }
  }
  while (place) drop();
}
