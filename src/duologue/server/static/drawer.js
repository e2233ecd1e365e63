// On narrow windows the list of dialogues is a drawer over the page; what is behind it is out of reach while it is open.

import { at } from "./dom.js";

const narrow = matchMedia("(max-width: 56rem)");

export const drawerIsOpen = () => document.body.classList.contains("drawer");

export function openDrawer() {
  document.body.classList.add("drawer");
  show();
}

export function closeDrawer() {
  document.body.classList.remove("drawer");
  show();
}

function show() {
  const open = drawerIsOpen();
  at("sidebar").inert = narrow.matches && !open;
  at("main").inert = narrow.matches && open;
  at("open-sidebar").setAttribute("aria-expanded", String(open));
  if (narrow.matches && open) at("new").focus();
}

narrow.addEventListener("change", closeDrawer);
at("open-sidebar").addEventListener("click", openDrawer);
at("close-sidebar").addEventListener("click", () => {
  closeDrawer();
  at("open-sidebar").focus();
});
at("shade").addEventListener("click", closeDrawer);
show();
