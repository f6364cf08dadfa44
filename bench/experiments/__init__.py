"""Contains one package for each question that lockbench answers: *a scenario → a judged result*.

`bench.questions` lists these questions.
"""
