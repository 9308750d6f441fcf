"""The conversations that every template is rendered for."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city, \"now\" or later.\nCosts nothing.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city, e.g. 'Zürich'"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "integer", "description": "How many <days> & nights", "minimum": 1},
            },
            "required": ["city"],
        },
    },
}
ORDER = {
    "type": "function",
    "function": {
        "name": "order",
        "description": "Orders things",
        "parameters": {
            "type": "object",
            "properties": {
                "items": {"type": "array", "description": "What to order", "items": {
                    "type": "object", "properties": {
                        "name": {"type": "string"},
                        "amount": {"type": ["number", "null"]},
                        "tags": {"type": "array", "items": {"type": "string"}}},
                    "required": ["name"]}},
                "express": {"type": "boolean"},
                "price": {"anyOf": [{"type": "number"}, {"type": "string"}]},
                "address": {"type": "object", "properties": {"street": {"type": "string"}}},
            },
            "required": ["items", "express"],
        },
        "response": {"type": "object", "properties": {"ok": {"type": "boolean"}}},
        "return": {"type": "string", "description": "a receipt"},
        "strict": True,
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "The time",
                                          "parameters": {"type": "object", "properties": {}}}}
TOOLS = [WEATHER, ORDER, CLOCK]


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


def call(name, arguments, identifier="call00001"):
    return {"id": identifier, "type": "function",
            "function": {"name": name, "arguments": arguments}}


def tool(content, identifier="call00001", name="get_weather"):
    return {"role": "tool", "content": content, "tool_call_id": identifier, "name": name}


QUESTION = user("What is the weather in Zürich?")
CALLED = assistant("", tool_calls=[call("get_weather", {"city": "Zürich", "days": 3})])
ANSWERED = [system("You are terse."), QUESTION, CALLED, tool('{"temperature": 21.5}')]
LONG = [system("Be kind."), user("One?"), assistant("1"), user("Two?"), assistant("2"),
        user("Three?"), assistant("3"), user("Four?")]

CONVERSATIONS = {
    "user": {"messages": [user("Hello")]},
    "user, prompt": {"messages": [user("Hello")], "add_generation_prompt": True},
    "system, prompt": {"messages": [system("You are terse."), user("Hello")],
                       "add_generation_prompt": True},
    "finished": {"messages": [system("You are terse."), user("Hello"), assistant("Hi there.")]},
    "many turns, prompt": {"messages": LONG, "add_generation_prompt": True},
    "empty contents": {"messages": [system(""), user(""), assistant(""), user("")],
                       "add_generation_prompt": True},
    "null content": {"messages": [user("Hello"), assistant(None), user("again")],
                     "add_generation_prompt": True},
    "white space, many scripts": {
        "messages": [system(" \n You are  terse.\t\n"), user("\n  Grüß Gott 🙂 <b>&amp;</b> 'q' \"d\" \\ \n"),
                     assistant("  你好\u00a0\n\n"), user("مرحبا {{ no }} {% tag %}")],
        "add_generation_prompt": True},
    "content parts": {
        "messages": [system([{"type": "text", "text": "You are terse."}]),
                     user([{"type": "text", "text": "What is "}, {"type": "image"},
                           {"type": "text", "text": " this?"}]),
                     assistant([{"type": "text", "text": "A cat."}]),
                     user([{"type": "text", "text": "Sure?"}])],
        "add_generation_prompt": True},
    "tools, first question": {"messages": [system("You are terse."), QUESTION], "tools": TOOLS,
                              "add_generation_prompt": True},
    "tools, no system": {"messages": [QUESTION], "tools": [CLOCK, WEATHER],
                         "add_generation_prompt": True},
    "tool call": {"messages": [QUESTION, CALLED], "tools": TOOLS},
    "tool result, prompt": {"messages": ANSWERED, "tools": TOOLS, "add_generation_prompt": True},
    "tool answer": {"messages": ANSWERED + [assistant("21.5 degrees."), user("Thanks")],
                    "tools": TOOLS, "add_generation_prompt": True},
    "two calls at once": {
        "messages": [QUESTION, assistant(None, tool_calls=[
            call("get_weather", {"city": "Bern", "unit": "celsius"}, "call00001"),
            call("order", {"items": [{"name": "tea", "amount": 2.5, "tags": []}], "express": False,
                           "price": None}, "call00002")]),
                     tool("18", "call00001"), tool("done", "call00002", "order")],
        "tools": TOOLS, "add_generation_prompt": True},
    "arguments as text": {
        "messages": [QUESTION, assistant("Let me see.", tool_calls=[
            call("get_weather", "{\"city\": \"Zürich\"}")]), tool("21")],
        "tools": TOOLS, "add_generation_prompt": True},
    "reasoning": {
        "messages": [user("2 + 2?"),
                     assistant("4", reasoning_content="Add them.", thinking="Add them."),
                     user("3 + 3?"), assistant("<think>\nSix?\n</think>\n\n6"), user("4 + 4?")],
        "add_generation_prompt": True, "enable_thinking": True, "thinking": True},
    "no reasoning": {"messages": [system("/no_think"), user("2 + 2?")],
                     "add_generation_prompt": True, "enable_thinking": False, "thinking": False},
    "developer, documents": {
        "messages": [{"role": "developer", "content": "Be exact."}, user("Summarize.")],
        "documents": [{"title": "A", "text": "first"}, {"title": "B", "text": "second"}],
        "add_generation_prompt": True, "date_string": "04 July 2026"},
    "wrong order of roles": {"messages": [assistant("I begin."), assistant("And go on."),
                                          system("Late."), {"role": "wizard", "content": "?"}]},
}
for _context in CONVERSATIONS.values():
    _context.setdefault("bos_token", "<s>")
    _context.setdefault("eos_token", "</s>")
assert len(CONVERSATIONS) == 20
