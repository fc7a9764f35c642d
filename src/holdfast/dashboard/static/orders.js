// An order takes two steps: what would it mean, and then a token that is good for just that.

export function orders(refresh) {
  let wanted = null;
  let token = null;
  const part = (name) => document.getElementById(name);

  function open(button) {
    const { slug, name, title, path, body } = button.dataset;
    wanted = { slug, name, path, body: JSON.parse(body) };
    token = null;
    part("order-title").textContent = title;
    part("order-text").textContent = "What is done is recorded in the log, and cannot be taken back.";
    part("order-go").textContent = "What would it mean?";
    part("order-go").hidden = false;
    part("order-cancel").textContent = "Cancel";
    part("order-says").textContent = "";
    part("order").showModal();
    part("order-word").focus();
  }

  async function post(path, body) {
    const answer = await fetch(`/api/pipelines/${wanted.slug}/${path}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${part("order-word").value}` },
      body: JSON.stringify(body),
    });
    const told = await answer.json();
    if (!answer.ok) throw new Error(told.message);
    return told;
  }

  async function go() {
    part("order-says").textContent = "";
    part("order-go").disabled = true;
    try {
      if (token === null) {
        const plan = await post(wanted.path, wanted.body);
        token = plan.token;
        part("order-text").textContent = `${plan.question}.`;
        part("order-go").textContent = `Yes: ${wanted.name}`;
      } else {
        const told = await post("actions/confirm", { token });
        token = null;
        part("order-text").textContent = `${told.done}: ${told.message}.`;
        part("order-word").value = "";
        part("order-go").hidden = true;
        part("order-cancel").textContent = "Close";
        refresh();
      }
    } catch (error) {
      part("order-says").textContent = error.message;
    } finally {
      part("order-go").disabled = false;
    }
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("button");
    if (button?.matches(".act")) open(button);
    else if (button?.id === "order-go") go();
    else if (button?.id === "order-cancel") part("order").close();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.id === "order-word") {
      event.preventDefault();
      go();
    }
  });
}
