import { greeting } from "./greeting.js";

const show = (text) => (document.querySelector("#greeting").textContent = text);
show(greeting);

// What a reload would lose.
const button = document.querySelector("#count");
button.addEventListener("click", () => (button.textContent = Number(button.textContent) + 1));

import.meta.hot.accept("./greeting.js", (fresh) => show(fresh.greeting));
