"""The referee: joins the moment when a client left with what the model server saw of it, for any HTTP proxy.

Lives here: ``trioproxy bench``. Client and model server run in one process and so on one clock; the proxy is outside
and is known by its address alone. Does not live here: anything of the proxy's own, which is judged like any other.

| file | what lives there |
|---|---|
| cases | stages, ways to leave, and which requests bring a client to a stage |
| payloads, responses, client | one request: its bytes out, its bytes in, its connection |
| index, play, join | what the model server saw, one request played, both sides joined to an outcome |
| records, metrics, require | facts of a request, figures over many, conditions on figures |
| target, usage | the proxy under test, what processes use |
| cancel, crowd, capacity, drain, memory, engine | the measurements |
| engine_metrics, engine_watch, engine_rest, engine_play, engine_judge | a real engine, and what it tells |
| library, tasks | a proxy in this process, and tasks that outlive their request |
| report, document, cancel_document | what was found, and the tables, plots and sentences that it becomes |
| text, markdown, junit, html, plots, words, xml | the forms that a document takes |
"""
